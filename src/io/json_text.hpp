// JSON from files that anybody may have written: strict, in time and memory that grow with the text only.
#pragma once

#include <functional>
#include <stdexcept>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

namespace flashomp::io {

/// Why a text is refused. what() continues a sentence about the text, for example "is not valid JSON at byte 12".
class JsonProblem : public std::runtime_error {
public:
    using std::runtime_error::runtime_error;
};

/// A name of the outermost object and its value.
using OnMember = std::function<void(const std::string& name, nlohmann::json value)>;

/// The one JSON value that `text` is.
///
/// nlohmann's own parser keeps the last of two equal keys and nests without bound, and with a callback that refuses
/// both it takes time that grows with the square of the text. Here a key that stands twice in an object, more than
/// `deepest` levels of objects and arrays, a number that no double can hold and more than 2^20 values in one array or
/// inner object throw JsonProblem, as text that is not JSON does.
///
/// `on_member`, when given, gets each member of the outermost object as soon as the text has it; the result then has
/// null in its place, so that a long text is never in memory whole.
[[nodiscard]] nlohmann::json parse_json(std::string_view text, std::size_t deepest, const OnMember& on_member = {});

} // namespace flashomp::io
