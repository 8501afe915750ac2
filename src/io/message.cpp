#include "message.hpp"

#include <system_error>

namespace flashomp::io {

std::string in_quotes(std::string_view text)
{
    constexpr std::size_t longest = 40;
    std::string result = "\"";
    for (const char letter : text.substr(0, longest)) {
        const bool printable = letter >= ' ' && letter <= '~';
        result += printable ? letter : '?';
    }
    return result + (text.size() > longest ? "…\"" : "\"");
}

std::string system_words(int error_number)
{
    return std::generic_category().message(error_number);
}

} // namespace flashomp::io
