// How this layer words a failure: one sentence that begins with the file it is about.
#pragma once

#include "flashomp/error.hpp"

#include "printable.hpp"

#include <filesystem>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

namespace flashomp::io {

/// Throws Error("<path>: <text>"), the path printable and not longer than paths are. `text` is an fmt format string and
/// ends the sentence with its full stop.
template <class... Arguments>
[[noreturn]] void fail(const std::filesystem::path& path, fmt::format_string<Arguments...> text,
                       Arguments&&... arguments)
{
    throw Error(printable(path.string(), longest_shown_path) + ": " +
                fmt::format(text, std::forward<Arguments>(arguments)...));
}

/// `text`, which came from a file, in double quotes and safe to print: at most 40 bytes of it, and a question mark
/// for everything but printable ASCII.
[[nodiscard]] std::string in_quotes(std::string_view text);

/// The system's words for an errno value, for example "No space left on device".
[[nodiscard]] std::string system_words(int error_number);

} // namespace flashomp::io
