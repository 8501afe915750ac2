// Options as JSON: what a checkpoint and a record hold of them. Reading is strict, as the file may be anybody's.
#include "options.hpp"

#include "printable.hpp"

#include "flashomp/error.hpp"

#include <algorithm>
#include <limits>

#include <fmt/format.h>

namespace gpt {

namespace {

using nlohmann::json;

[[noreturn]] void refuse(const char* name, const json& value, const char* allowed)
{
    constexpr std::size_t longest = 40;
    throw flashomp::Error(
        fmt::format("{} is {}; allowed is {}", name, flashomp::printable(value.dump(), longest), allowed));
}

const json& at(const json& object, const char* name)
{
    const auto found = object.find(name);
    if (found == object.end()) {
        throw flashomp::Error(fmt::format("{} is missing", name));
    }
    return *found;
}

void take(const json& object, const char* name, std::int64_t& value)
{
    value = whole_number(object, name);
}

void take(const json& object, const char* name, int& value)
{
    const std::int64_t number = whole_number(object, name);
    if (number < std::numeric_limits<int>::min() || number > std::numeric_limits<int>::max()) {
        refuse(name, number, "a whole number of 32 bits");
    }
    value = static_cast<int>(number);
}

void take(const json& object, const char* name, std::uint64_t& value)
{
    value = natural_number(object, name);
}

void take(const json& object, const char* name, double& value)
{
    if (!at(object, name).is_number()) {
        refuse(name, at(object, name), "a number");
    }
    value = at(object, name).get<double>();
}

void take(const json& object, const char* name, bool& value)
{
    if (!at(object, name).is_boolean()) {
        refuse(name, at(object, name), "true or false");
    }
    value = at(object, name).get<bool>();
}

void take(const json& object, const char* name, std::string& value)
{
    if (!at(object, name).is_string()) {
        refuse(name, at(object, name), "a string");
    }
    value = at(object, name).get<std::string>();
}

void take(const json& object, const char* name, std::vector<std::string>& value)
{
    const json& array = at(object, name);
    if (!array.is_array() ||
        !std::all_of(array.begin(), array.end(), [](const json& each) { return each.is_string(); })) {
        refuse(name, array, "an array of strings");
    }
    value = array.get<std::vector<std::string>>();
}

} // namespace

std::int64_t whole_number(const json& object, const char* name)
{
    const json& value = at(object, name);
    const bool fits =
        !value.is_number_unsigned() || value.get<std::uint64_t>() <= std::numeric_limits<std::int64_t>::max();
    if (!value.is_number_integer() || !fits) {
        refuse(name, value, "a whole number of 64 bits");
    }
    return value.get<std::int64_t>();
}

std::uint64_t natural_number(const json& object, const char* name)
{
    const json& value = at(object, name);
    if (!value.is_number_unsigned()) {
        refuse(name, value, "a whole number of 64 bits that is not negative");
    }
    return value.get<std::uint64_t>();
}

json to_json(const Options& options)
{
    json object;
    for_each_saved(options, [&](const char* name, const auto& value) { object[name] = value; });
    return object;
}

Options options_from_json(const json& object)
{
    if (!object.is_object()) {
        throw flashomp::Error("options are no object");
    }
    Options options;
    json whole = object;
    if (!object.contains("hashed_ngrams") && !object.contains("hash_rows")) { // a file from before there were tables
        whole.update({{"hashed_ngrams", 0}, {"hash_rows", options.hash_rows}});
    }
    json known = json::object();
    for_each_saved(options, [&](const char* name, auto& value) {
        take(whole, name, value);
        known[name] = nullptr;
    });
    for (const auto& [name, value] : object.items()) {
        if (!known.contains(name)) {
            throw flashomp::Error(fmt::format("{} is no option", flashomp::printable(name, 40)));
        }
    }
    check_options(options);
    return options;
}

} // namespace gpt
