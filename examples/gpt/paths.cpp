#include "paths.hpp"

#include "printable.hpp"

#include "flashomp/error.hpp"

#include <algorithm>
#include <system_error>
#include <utility>

#include <fmt/format.h>

namespace gpt {

namespace {

namespace fs = std::filesystem;
using flashomp::longest_shown_path;
using flashomp::printable;

fs::path followed(const fs::path& path, int links_left)
{
    std::error_code error;
    fs::path real = fs::canonical(path, error);
    if (!error) {
        return real;
    }
    if (fs::is_symlink(path, error)) { // to a file that is not there
        const fs::path next = fs::read_symlink(path, error);
        return error || links_left == 0 ? fs::path() : followed(path.parent_path() / next, links_left - 1);
    }
    real = fs::canonical(path.has_parent_path() ? path.parent_path() : fs::path("."), error);
    return error || !path.has_filename() ? fs::path() : real / path.filename();
}

bool is_same(const std::string& left, const std::string& right)
{
    std::error_code error; // an entry that is not there is no other's
    const fs::path real = real_path(left);
    return (!real.empty() && real == real_path(right)) || fs::equivalent(left, right, error);
}

bool is_inside(const std::string& file, const std::string& folder)
{
    std::error_code error;
    const fs::path outer = fs::canonical(folder, error);
    const fs::path inner = real_path(file);
    return !error && fs::is_directory(outer, error) &&
           std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end()).first == outer.end();
}

void refuse(const char* option, const std::string& path, const std::string& reason)
{
    throw flashomp::Error(fmt::format("{} was {}, {}.", option, printable(path, longest_shown_path), reason));
}

} // namespace

fs::path real_path(const fs::path& path)
{
    constexpr int most_links = 40; // as Linux has it
    return followed(path, most_links);
}

void check_paths(const Options& options)
{
    std::vector<std::pair<const char*, std::string>> named;
    for (const auto& [option, path] : {std::pair("--save", &options.save), std::pair("--resume", &options.resume),
                                       std::pair("--json", &options.json)}) {
        if (path->empty() && options.is_given(option)) {
            throw flashomp::Error(fmt::format("{} was empty; allowed is the path of a file.", option));
        }
        if (!path->empty()) {
            named.emplace_back(option, *path);
        }
    }
    for (const std::string& path : options.data) {
        if (path.empty()) {
            throw flashomp::Error("--data was empty; allowed is the path of a file or a folder.");
        }
        if (printable(path) != path) {
            refuse("--data", path, "which is not printable UTF-8; other paths cannot be recorded in JSON");
        }
        if (!options.json.empty() && is_inside(options.json, path)) {
            refuse("--json", options.json,
                   fmt::format("which is in the folder {} of --data and would be a part of the text; allowed is a file "
                               "elsewhere",
                               path));
        }
        named.emplace_back("--data", path);
    }
    for (std::size_t i = 0; i < named.size(); ++i) {
        for (std::size_t j = 0; j < i; ++j) {
            const auto& [option, path] = named[i];
            const auto& [other, other_path] = named[j];
            const bool goes_on = std::string_view(option) == "--resume" && std::string_view(other) == "--save";
            if (std::string_view(option) != other && !goes_on && is_same(path, other_path)) {
                refuse(option, path, fmt::format("which is the file of {}, too; allowed is another one", other));
            }
        }
    }
}

} // namespace gpt
