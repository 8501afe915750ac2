// Values of command-line options: each parser takes the whole text or throws Error with what is allowed.
#pragma once

#include "flashomp/error.hpp"

#include "printable.hpp"

#include <charconv>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace flashomp::cli {

[[noreturn]] inline void refuse_value(std::string_view flag, std::string_view text, std::string_view allowed)
{
    constexpr std::size_t longest_shown = 100;
    throw Error(fmt::format("{} was '{}'; allowed is {}.", flag, printable(text, longest_shown), allowed));
}

/// A number that fills the whole text.
template <class Number>
[[nodiscard]] Number parse_number(std::string_view flag, std::string_view text, std::string_view allowed)
{
    Number value{};
    const char* const end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, value);
    if (error != std::errc() || stop != end || text.empty()) {
        refuse_value(flag, text, allowed);
    }
    return value;
}

/// One of several words.
template <class Value>
[[nodiscard]] Value parse_word(std::string_view flag, std::string_view text,
                               const std::vector<std::pair<std::string_view, Value>>& words)
{
    std::string allowed = "one of";
    const char* separator = " ";
    for (const auto& [word, value] : words) {
        if (word == text) {
            return value;
        }
        allowed.append(separator).append(word);
        separator = ", ";
    }
    refuse_value(flag, text, allowed);
}

} // namespace flashomp::cli
