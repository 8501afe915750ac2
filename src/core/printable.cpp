#include "printable.hpp"

#include <cstdint>

namespace flashomp {

namespace {

/// The first character of a text: its code point and how many bytes it takes.
struct Character {
    std::uint32_t code = 0;
    std::size_t bytes = 0; ///< 0: these bytes are not UTF-8
};

/// RFC 3629: shortest forms only, no surrogates, nothing above U+10FFFF.
Character first_of(std::string_view text)
{
    const auto byte = [&](std::size_t i) { return static_cast<std::uint32_t>(static_cast<unsigned char>(text[i])); };
    const std::uint32_t lead = byte(0);
    if (lead < 0x80) {
        return {lead, 1};
    }
    const std::size_t bytes = lead >= 0xf0 ? 4 : (lead >= 0xe0 ? 3 : 2);
    if (lead < 0xc2 || lead > 0xf4 || text.size() < bytes) {
        return {};
    }
    std::uint32_t code = lead & (0x7fU >> bytes);
    for (std::size_t i = 1; i < bytes; ++i) {
        if ((byte(i) & 0xc0U) != 0x80U) {
            return {};
        }
        code = (code << 6) | (byte(i) & 0x3fU);
    }
    const std::uint32_t least = bytes == 4 ? 0x10000 : (bytes == 3 ? 0x800 : 0x80);
    const bool is_surrogate = code >= 0xd800 && code <= 0xdfff;
    return code < least || code > 0x10ffff || is_surrogate ? Character{} : Character{code, bytes};
}

bool is_harmless(std::uint32_t code)
{
    const bool is_control = code < 0x20 || (code >= 0x7f && code <= 0x9f);
    const bool breaks_lines = code == 0x2028 || code == 0x2029;
    const bool turns =
        code == 0x200e || code == 0x200f || (code >= 0x202a && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069);
    return !is_control && !breaks_lines && !turns;
}

} // namespace

std::string printable(std::string_view text, std::size_t longest)
{
    std::string result;
    while (!text.empty()) {
        const Character next = first_of(text);
        const std::size_t bytes = next.bytes == 0 ? 1 : next.bytes;
        if (bytes > longest - result.size()) {
            return result + "…";
        }
        if (next.bytes > 0 && is_harmless(next.code)) {
            result += text.substr(0, bytes);
        } else {
            result += '?';
        }
        text.remove_prefix(bytes);
    }
    return result;
}

} // namespace flashomp
