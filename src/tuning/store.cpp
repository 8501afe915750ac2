#include "store.hpp"

#include "file.hpp"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <exception>

namespace flashomp::tuning {

namespace fs = std::filesystem;

namespace {

/// A variable of the environment; empty where it is not set.
std::string_view variable(const char* name)
{
    const char* const value = std::getenv(name); // NOLINT(concurrency-mt-unsafe)
    return value == nullptr ? std::string_view() : std::string_view(value);
}

struct Loaded {
    std::vector<Table> user; ///< of this build
    std::vector<Table> shipped;
    std::string problem; ///< with the user's file
};

Loaded load()
{
    Loaded loaded;
    const Place place = user_place();
    if (place.is_off) {
        return loaded;
    }
    for (const std::string_view text : shipped_texts()) {
        for (Table& table : parse_tables(text, "shipped table")) {
            table.key = {table.key.device, {}, {}}; // measured with other drivers and before this build
            merge(loaded.shipped, table);
        }
    }
    try {
        if (!place.file.empty()) {
            loaded.user = read_tables(place.file);
        }
    } catch (const std::exception& error) { // no call fails for want of a table
        loaded.problem = error.what();
    }
    std::erase_if(loaded.user, [](const Table& table) { return table.key.build != this_build(); });
    return loaded;
}

/// Nothing where even that failed. Never destroyed: a call in an atexit handler asks for it, too.
const Loaded& loaded() noexcept
{
    static const Loaded& found = *[] {
        try {
            return new Loaded(load());
        } catch (...) {
            return new Loaded;
        }
    }();
    return found;
}

std::atomic<bool> are_ignored{false};

} // namespace

Place user_place()
{
    if (const std::string_view named = variable("FLASHOMP_TUNING"); !named.empty()) {
        const bool is_off = named == "off";
        const bool is_shipped_only = named == "shipped";
        return {is_off, is_shipped_only, is_off || is_shipped_only ? fs::path() : fs::path(named)};
    }
    fs::path folder = variable("XDG_CACHE_HOME");
    if (!folder.is_absolute()) { // a relative one does not count (XDG Base Directory Specification)
        const std::string_view home = variable("HOME");
        if (home.empty()) {
            return {};
        }
        folder = fs::path(home) / ".cache";
    }
    return {false, false, folder / "flashomp" / "tuning.json"};
}

Tables tables_for(std::string_view device, std::string_view driver) noexcept
{
    if (are_ignored) {
        return {};
    }
    const auto find = [&](const std::vector<Table>& tables, std::string_view wanted) -> const Table* {
        const auto found = std::find_if(tables.begin(), tables.end(), [&](const Table& table) {
            return table.key.device == device && table.key.driver == wanted;
        });
        return found == tables.end() ? nullptr : &*found;
    };
    return {find(loaded().user, driver), find(loaded().shipped, {})};
}

const std::string& user_problem()
{
    return loaded().problem;
}

void ignore_tables()
{
    are_ignored = true;
}

} // namespace flashomp::tuning
