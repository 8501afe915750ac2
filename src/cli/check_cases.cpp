#include "check_cases.hpp"

#include "flashomp/error.hpp"

#include "input_file.hpp"
#include "json_text.hpp"
#include "message.hpp"
#include "option_list.hpp"
#include "printable.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <set>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

namespace flashomp::cli {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

constexpr const char* list_name = "cases.json";
constexpr std::size_t longest_name = 255;                    // of a file, on Linux
constexpr std::int64_t largest_list = std::int64_t{1} << 24; // bytes of cases.json

/// Where in which file something is wrong.
struct Place {
    const fs::path& file;
    std::string inside;

    [[noreturn]] void refuse(const std::string& what) const { io::fail(file, "{}{}.", inside, what); }
};

json parse_list(const std::string& text, const Place& place)
{
    try {
        constexpr std::size_t deepest = 5; // the list, its cases, a case, its options, a window
        return io::parse_json(text, deepest);
    } catch (const io::JsonProblem& problem) {
        place.refuse(fmt::format("{}; a list of cases is needed", problem.what()));
    }
}

/// An object all of whose keys are allowed.
template <class Allowed>
void require_object(const json& value, const Allowed& allowed, const Place& place)
{
    if (!value.is_object()) {
        place.refuse(fmt::format("an object is needed, not {}", value.type_name()));
    }
    for (const auto& [key, ignored] : value.items()) {
        if (std::find(allowed.begin(), allowed.end(), std::string_view(key)) == allowed.end()) {
            place.refuse(
                fmt::format("the key {} is unknown; allowed are {}", io::in_quotes(key), fmt::join(allowed, ", ")));
        }
    }
}

/// The name of a file or folder directly inside another folder. It is printed too: no control characters.
std::string plain_name(const json& value, const std::string& key, const Place& place)
{
    std::string name = value.is_string() ? value.get<std::string>() : std::string();
    if (name.empty() || name == "." || name == ".." || name.size() > longest_name ||
        name.find_first_of("/\\") != std::string::npos || printable(name) != name) {
        place.refuse(fmt::format("'{}' must be the name of a file or folder, without a path, in at most {} printable "
                                 "characters",
                                 key, longest_name));
    }
    return name;
}

/// One side of a window.
std::int64_t whole_number(const json& value, const Place& place)
{
    constexpr std::uint64_t largest = std::numeric_limits<std::int64_t>::max();
    if (!value.is_number_integer() || (value.is_number_unsigned() && value.get<std::uint64_t>() > largest)) {
        place.refuse("'window' must be two whole numbers [left, right], each from -1 to 2^63 - 1");
    }
    return value.get<std::int64_t>();
}

double finite_number(const json& value, const char* key, const Place& place)
{
    if (!value.is_number() || !std::isfinite(value.get<double>())) {
        place.refuse(fmt::format("'{}' must be a number", key));
    }
    return value.get<double>();
}

/// {"probability": 0.25, "seed": 1, "offset": 2}; the last two are 0 when they are not given.
Dropout parse_dropout(const json& value, const Place& place)
{
    constexpr std::array<std::string_view, 3> keys{"probability", "seed", "offset"};
    require_object(value, keys, place);
    if (!value.contains("probability")) {
        place.refuse("'dropout' needs 'probability'");
    }
    Dropout dropout;
    dropout.probability = finite_number(value.at("probability"), "probability", place);
    for (const auto& [key, counter] : {std::pair{"seed", &dropout.seed}, std::pair{"offset", &dropout.offset}}) {
        if (value.contains(key)) {
            if (!value.at(key).is_number_unsigned()) {
                place.refuse(fmt::format("'{}' must be a whole number from 0", key));
            }
            *counter = value.at(key).get<std::uint64_t>();
        }
    }
    return dropout;
}

Options parse_options(const json& value, const Place& place)
{
    std::vector<std::string_view> keys(other_options.begin(), other_options.end());
    for (const NumberOption& option : number_options) {
        keys.emplace_back(option.name);
    }
    require_object(value, keys, place);
    Options options;
    if (value.contains("causal")) {
        const json& causal = value.at("causal");
        if (causal == "top_left") {
            options.causal = Causal::top_left;
        } else if (causal == "bottom_right") {
            options.causal = Causal::bottom_right;
        } else if (causal != "none") {
            place.refuse("'causal' must be none, top_left or bottom_right");
        }
    }
    if (value.contains("window")) {
        const json& window = value.at("window");
        if (!window.is_array() || window.size() != 2) {
            place.refuse("'window' must be two whole numbers [left, right]");
        }
        options.window = {whole_number(window[0], place), whole_number(window[1], place)};
    }
    for (const NumberOption& option : number_options) {
        if (value.contains(option.name)) {
            option.set(options, finite_number(value.at(option.name), option.name, place));
        }
    }
    if (value.contains("dropout")) {
        options.dropout = parse_dropout(value.at("dropout"), place);
    }
    return options;
}

CheckCase parse_case(const json& value, std::size_t index, const fs::path& directory, const fs::path& file)
{
    Place place{file, fmt::format("case number {}: ", index + 1)};
    std::vector<std::string_view> keys{"name", "options"};
    for (const TensorOption& option : tensor_options) {
        if (!option.is_float8_only) { // a case has gradients, which float8_e4m3 has not
            keys.emplace_back(option.name);
        }
        if (option.gradient) {
            keys.emplace_back(option.gradient.name);
        }
    }
    require_object(value, keys, place);
    if (!value.contains("name") || !value.contains("options")) {
        place.refuse("'name' and 'options' are needed");
    }
    CheckCase result;
    result.name = plain_name(value.at("name"), "name", place);
    place.inside = fmt::format("case '{}': ", result.name);
    result.options = parse_options(value.at("options"), place);

    const fs::path folder = directory / result.name;
    for (const char* name : {"q", "k", "v", "do"}) {
        result.inputs[name] = folder / (std::string(name) + ".npy");
    }
    for (const char* name : {"o", "lse", "dq", "dk", "dv"}) {
        result.expected[name] = folder / (std::string(name) + ".npy");
    }
    for (const TensorOption& option : tensor_options) {
        if (value.contains(option.name)) {
            result.inputs[option.name] = folder / plain_name(value.at(option.name), option.name, place);
        }
        if (const char* const name = option.gradient.name; name != nullptr && value.contains(name)) {
            if (!value.contains(option.name)) {
                place.refuse(fmt::format("'{}' needs '{}'", name, option.name));
            }
            result.expected[name] = folder / plain_name(value.at(name), name, place);
        }
    }
    return result;
}

} // namespace

std::vector<CheckCase> read_cases(const fs::path& directory)
{
    std::error_code error;
    if (!fs::is_directory(directory, error)) {
        io::fail(directory, "there is no such folder; check needs a folder with cases.json in it.");
    }
    io::InputFile file(directory / list_name);
    if (file.size() > largest_list) {
        io::fail(file.path(), "has {} bytes; a list of cases has at most {}.", file.size(), largest_list);
    }
    std::string text(static_cast<std::size_t>(file.size()), '\0');
    file.read(text.data(), file.size());
    return parse_cases(text, directory);
}

std::vector<CheckCase> parse_cases(const std::string& text, const fs::path& directory)
{
    const fs::path file = directory / list_name;
    const Place place{file, ""};
    const json list = parse_list(text, place);
    constexpr std::array<std::string_view, 4> keys{"layout", "inputs", "expected", "cases"};
    require_object(list, keys, place);
    for (const char* words : {"layout", "inputs", "expected"}) {
        if (list.contains(words) && !list.at(words).is_string()) {
            place.refuse(fmt::format("'{}' must be text", words));
        }
    }
    if (!list.contains("cases") || !list.at("cases").is_array() || list.at("cases").empty()) {
        place.refuse("'cases' must be a list of at least one case");
    }
    std::vector<CheckCase> cases;
    std::set<std::string> names;
    for (const json& value : list.at("cases")) {
        cases.push_back(parse_case(value, cases.size(), directory, file));
        if (!names.insert(cases.back().name).second) {
            place.refuse(fmt::format("the case '{}' appears twice", cases.back().name));
        }
    }
    return cases;
}

} // namespace flashomp::cli
