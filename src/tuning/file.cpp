#include "file.hpp"

#include "words.hpp"

#include "atomic_file.hpp"
#include "input_file.hpp"
#include "json_text.hpp"
#include "message.hpp"
#include "printable.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <limits>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <sys/file.h>
#include <unistd.h>

namespace flashomp::tuning {

namespace fs = std::filesystem;

namespace {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json; // written for people; with many keys in an object it would be slow to read

constexpr int format_version = 1;
constexpr const char* version_name = "flashomp_tuning";
constexpr std::int64_t largest_number = std::numeric_limits<std::int64_t>::max();
constexpr std::size_t most_tables = 64;                      ///< of a file: builds come and go, and the oldest give way
constexpr std::int64_t largest_file = std::int64_t{1} << 24; ///< bytes; some 27000 entries

OrderedJson entry_json(const ShapeClass& shape, const Entry& entry)
{
    const Tiling& tiling = entry.choice.tiling;
    return {{"backend", word_of(shape.backend)},
            {"direction", word_of(shape.is_backward)},
            {"dtype", word_of(shape.dtype)},
            {"head_dim", shape.depth},
            {"mask", word_of(shape.mask)},
            {"modified", shape.is_modified},
            {"packed", shape.is_packed},
            {"seqlen_q", shape.seqlen_q},
            {"seqlen_k", shape.seqlen_k},
            {"query_heads", shape.query_heads},
            {"key_heads", shape.key_heads},
            {"machine", word_of(entry.choice.machine)},
            {"resident_rows", tiling.resident_rows},
            {"stream_rows", tiling.stream_rows},
            {"teams", tiling.teams},
            {"team_threads", tiling.team_threads},
            {"global_memory", tiling.global_memory},
            {"measured", entry.shape},
            {"ran_as", entry.machine},
            {"milliseconds", entry.seconds * 1e3},
            {"automatic_milliseconds", entry.automatic_seconds * 1e3}};
}

template <class Value>
Value word_at(const Json& json, const char* name)
{
    const auto& word = json.at(name).get_ref<const std::string&>();
    const auto value = value_of<Value>(word);
    if (!value) {
        throw Error(std::string(name) + " is " + io::in_quotes(word));
    }
    return *value;
}

/// A whole number within limits. JSON's own conversion would wrap larger ones around, and cut fractions off.
std::int64_t number_at(const Json& json, const char* name, std::int64_t least, std::int64_t most)
{
    constexpr std::size_t longest_shown = 40;
    const Json& value = json.at(name);
    const bool is_too_large =
        value.is_number_unsigned() && value.get<std::uint64_t>() > static_cast<std::uint64_t>(largest_number);
    if (!value.is_number_integer() || is_too_large || value.get<std::int64_t>() < least ||
        value.get<std::int64_t>() > most) {
        throw Error(fmt::format("{} is {}, allowed {}", name,
                                printable(value.dump(-1, ' ', true, Json::error_handler_t::replace), longest_shown),
                                least == most ? fmt::format("is {}", least)
                                              : fmt::format("are whole numbers from {} to {}", least, most)));
    }
    return value.get<std::int64_t>();
}

/// A size, or 0. Not more than anybody stores: a call must not fail for want of the memory that a table asks for.
int size_at(const Json& json, const char* name, int most)
{
    return static_cast<int>(number_at(json, name, 0, most));
}

/// Milliseconds, as seconds.
double seconds_at(const Json& json, const char* name)
{
    const auto milliseconds = json.at(name).get<double>();
    if (!(milliseconds >= 0)) {
        throw Error(fmt::format("{} is {:g}, allowed are numbers from 0", name, milliseconds));
    }
    return milliseconds * 1e-3;
}

/// Text that is printed at some time, so without what could steer a terminal, and of bounded length.
std::string text_at(const Json& json, const char* name)
{
    constexpr std::size_t longest = 4096; // compiler flags are part of a build's name
    const auto& text = json.at(name).get_ref<const std::string&>();
    if (text.size() > longest || printable(text) != text) {
        throw Error(std::string(name) + " is " + io::in_quotes(text));
    }
    return text;
}

std::pair<ShapeClass, Entry> parse_entry(const Json& json)
{
    ShapeClass shape;
    shape.backend = word_at<Backend>(json, "backend");
    shape.is_backward = word_at<bool>(json, "direction");
    shape.dtype = word_at<DType>(json, "dtype");
    shape.depth = size_at(json, "head_dim", static_cast<int>(most_head_dim));
    shape.mask = word_at<Mask>(json, "mask");
    shape.is_modified = json.at("modified").get<bool>();
    shape.is_packed = json.at("packed").get<bool>();
    shape.seqlen_q = number_at(json, "seqlen_q", 0, largest_number);
    shape.seqlen_k = number_at(json, "seqlen_k", 0, largest_number);
    shape.query_heads = number_at(json, "query_heads", 0, largest_number);
    shape.key_heads = number_at(json, "key_heads", 0, largest_number);
    Entry entry;
    entry.choice.machine = word_at<Machine>(json, "machine");
    Tiling& tiling = entry.choice.tiling;
    constexpr int most_rows = 1024, most_teams = 1024, most_threads = 32;
    tiling.resident_rows = size_at(json, "resident_rows", most_rows);
    tiling.stream_rows = size_at(json, "stream_rows", most_rows);
    tiling.teams = size_at(json, "teams", most_teams);
    tiling.team_threads = size_at(json, "team_threads", most_threads);
    tiling.global_memory = json.at("global_memory").get<bool>();
    entry.shape = text_at(json, "measured");
    entry.machine = text_at(json, "ran_as");
    entry.seconds = seconds_at(json, "milliseconds");
    entry.automatic_seconds = seconds_at(json, "automatic_milliseconds");
    return {shape, entry};
}

/// Keeps others from changing files of a folder in this way for as long as it lives, where the file system can.
class FolderLock {
public:
    explicit FolderLock(const fs::path& folder) : descriptor_(::open(folder.c_str(), O_RDONLY | O_CLOEXEC))
    {
        while (descriptor_ >= 0 && ::flock(descriptor_, LOCK_EX) != 0 && errno == EINTR) {
        }
    }
    ~FolderLock()
    {
        if (descriptor_ >= 0) {
            ::close(descriptor_);
        }
    }
    FolderLock(const FolderLock&) = delete;
    FolderLock& operator=(const FolderLock&) = delete;

private:
    int descriptor_;
};

} // namespace

std::string json_text(const std::vector<Table>& tables)
{
    OrderedJson list = OrderedJson::array();
    for (const Table& table : tables) {
        OrderedJson entries = OrderedJson::array();
        for (const auto& [shape, entry] : table.entries) {
            entries.push_back(entry_json(shape, entry));
        }
        list.push_back({{"device", table.key.device},
                        {"driver", table.key.driver},
                        {"build", table.key.build},
                        {"entries", std::move(entries)}});
    }
    const OrderedJson file{{version_name, format_version}, {"tables", std::move(list)}};
    return file.dump(1, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
}

std::vector<Table> parse_tables(std::string_view text, const fs::path& name)
{
    try {
        constexpr std::size_t deepest = 5; // the file, its tables, a table, its entries, an entry
        const Json file = io::parse_json(text, deepest);
        number_at(file, version_name, format_version, format_version);
        std::vector<Table> tables;
        for (const Json& json : file.at("tables")) {
            Table& table = tables.emplace_back();
            table.key = {text_at(json, "device"), text_at(json, "driver"), text_at(json, "build")};
            for (const Json& entry : json.at("entries")) {
                table.entries.insert(parse_entry(entry));
            }
        }
        return tables;
    } catch (const io::JsonProblem& problem) {
        io::fail(name, "is not a tuning table: its text {}; a file that `flashomp tune` wrote is needed.",
                 problem.what());
    } catch (const Json::exception&) {
        io::fail(name, "is not a tuning table; a file that `flashomp tune` wrote is needed.");
    } catch (const Error& error) {
        io::fail(name, "is not a tuning table of this version ({}); one that this `flashomp tune` wrote is needed.",
                 error.what());
    }
}

std::vector<Table> read_tables(const fs::path& file)
{
    std::error_code error;
    const fs::file_status status = fs::status(file, error);
    if (status.type() == fs::file_type::not_found) {
        return {};
    }
    if (error || status.type() != fs::file_type::regular) {
        io::fail(file, "cannot be read; a tuning table is a regular file that its user can read.");
    }
    io::InputFile input(file);
    if (input.size() > largest_file) {
        io::fail(file, "is not a tuning table: its {} bytes are more than the {} that one has at most.", input.size(),
                 largest_file);
    }
    std::string text(static_cast<std::size_t>(input.size()), '\0');
    input.read(text.data(), input.size());
    return parse_tables(text, file);
}

void merge(std::vector<Table>& tables, const Table& found)
{
    Table merged{found.key, {}};
    const auto same = std::find_if(tables.begin(), tables.end(), [&](const Table& t) { return t.key == found.key; });
    if (same != tables.end()) {
        merged = std::move(*same);
        tables.erase(same);
    }
    for (const auto& [shape, entry] : found.entries) {
        merged.entries.insert_or_assign(shape, entry);
    }
    tables.push_back(std::move(merged)); // the newest last
}

void expect_storable(const fs::path& file)
{
    static_cast<void>(read_tables(file));
    std::error_code error;
    fs::create_directories(fs::absolute(file).parent_path(), error); // where it fails, StagedFile says so
    const io::StagedFile probe(file);
}

void store(const fs::path& file, const Table& found)
{
    expect_storable(file);
    const FolderLock lock(fs::absolute(file).parent_path());
    std::vector<Table> tables = read_tables(file);
    merge(tables, found);
    while (tables.size() > most_tables) {
        tables.erase(tables.begin());
    }
    std::string text = json_text(tables);
    while (static_cast<std::int64_t>(text.size()) > largest_file && tables.size() > 1) { // nobody could read it
        tables.erase(tables.begin());
        text = json_text(tables);
    }
    io::StagedFile staged(file);
    staged.write(text.data(), static_cast<std::int64_t>(text.size()));
    staged.publish();
}

} // namespace flashomp::tuning
