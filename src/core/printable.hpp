// Text from outside (names in files, paths, options) made fit for a message: it cannot steer a terminal or flood it.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace flashomp {

/// At most this much of a path is shown; longer ones come from hostile input only.
inline constexpr std::size_t longest_shown_path = 300;

/// `text` with a question mark for everything that is not printable UTF-8: control characters (U+0000 to U+001F and
/// U+007F to U+009F), line separators, characters that turn the direction of writing, and bytes that are not UTF-8. Of
/// a longer text the first `longest` bytes at most, and "…".
[[nodiscard]] std::string printable(std::string_view text, std::size_t longest = std::string_view::npos);

} // namespace flashomp
