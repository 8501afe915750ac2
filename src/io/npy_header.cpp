#include "npy_header.hpp"

#include "message.hpp"

#include <array>
#include <charconv>
#include <cstdint>
#include <optional>
#include <system_error>
#include <utility>

namespace flashomp::io {

namespace {

constexpr std::string_view magic = "\x93NUMPY";
constexpr std::size_t prefix_bytes = magic.size() + 2; // and the version
constexpr std::size_t alignment = 64;

/// Version 1.0 can say no more, and versions 2.0 and 3.0 only need more for structured types.
constexpr std::uint32_t longest_dictionary = 65535;

/// Recursive descent over the one dictionary that NumPy writes; one function a grammar rule.
class DictionaryParser {
public:
    DictionaryParser(std::string_view text, const std::filesystem::path& path) : text_(text), path_(path) {}

    NpyHeader parse()
    {
        expect('{', "the dictionary");
        skip_spaces();
        while (!accept('}')) {
            item();
            skip_spaces();
            if (accept('}')) {
                break;
            }
            expect(',', "a comma or the end of the dictionary");
            skip_spaces();
        }
        padding();
        return {require(descr_, "descr"), require(fortran_order_, "fortran_order"), require(shape_, "shape")};
    }

private:
    void item()
    {
        const std::string_view key = string("a key");
        skip_spaces();
        expect(':', "a colon");
        skip_spaces();
        if (key == "descr") {
            set(descr_, key, std::string(string("a type such as '<f4' (structured types are not allowed)")));
        } else if (key == "fortran_order") {
            set(fortran_order_, key, boolean());
        } else if (key == "shape") {
            set(shape_, key, tuple());
        } else {
            fail(path_, "has the key {} in its header; only descr, fortran_order and shape are allowed.",
                 in_quotes(key));
        }
    }

    std::string_view string(std::string_view wanted)
    {
        const char quote = peek();
        if (quote != '\'' && quote != '"') {
            unexpected(wanted);
        }
        const std::size_t begin = ++position_;
        while (peek() != quote) {
            if (peek() == '\\' || peek() < ' ' || peek() > '~') {
                unexpected("a string of printable characters without escapes");
            }
            ++position_;
        }
        return text_.substr(begin, position_++ - begin);
    }

    bool boolean()
    {
        for (const std::string_view word : {"True", "False"}) {
            if (text_.substr(position_).starts_with(word)) {
                position_ += word.size();
                return word == "True";
            }
        }
        unexpected("True or False");
    }

    Shape tuple()
    {
        Shape shape;
        expect('(', "a tuple");
        skip_spaces();
        while (!accept(')')) {
            shape.push_back(extent());
            skip_spaces();
            if (shape.size() > 1 && accept(')')) {
                break; // a tuple of one needs its comma: (3) is a number
            }
            expect(',', "a comma or the end of the tuple");
            skip_spaces();
        }
        return shape;
    }

    std::int64_t extent()
    {
        const std::string_view rest = text_.substr(position_);
        std::int64_t value = 0;
        const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), value);
        const std::string_view digits = rest.substr(0, static_cast<std::size_t>(end - rest.data()));
        if (error == std::errc::invalid_argument || (digits.size() > 1 && digits.front() == '0')) {
            unexpected("a decimal integer");
        }
        if (error != std::errc() || digits.front() == '-') {
            fail(path_, "has the extent {} in its header; 0 to 2^63 - 1 are allowed.", in_quotes(digits));
        }
        position_ += digits.size();
        return value;
    }

    void padding()
    {
        while (peek() == ' ') {
            ++position_;
        }
        if (text_.substr(position_) != "\n") {
            unexpected("spaces and one newline, and then the end of the header,");
        }
    }

    template <class Value>
    void set(std::optional<Value>& slot, std::string_view key, Value value)
    {
        if (slot) {
            fail(path_, "has the key \"{}\" twice in its header; each is allowed once.", key);
        }
        slot = std::move(value);
    }

    template <class Value>
    Value require(const std::optional<Value>& slot, std::string_view key)
    {
        if (!slot) {
            fail(path_, "lacks the key \"{}\" in its header; descr, fortran_order and shape are needed.", key);
        }
        return *slot;
    }

    void expect(char wanted, std::string_view description)
    {
        if (!accept(wanted)) {
            unexpected(description);
        }
    }

    bool accept(char wanted)
    {
        const bool here = position_ < text_.size() && text_[position_] == wanted;
        position_ += here ? 1 : 0;
        return here;
    }

    void skip_spaces()
    {
        while (peek() == ' ' || peek() == '\t') {
            ++position_;
        }
    }

    /// The character at the position; '\0', which no rule accepts, at the end.
    [[nodiscard]] char peek() const { return position_ < text_.size() ? text_[position_] : '\0'; }

    [[noreturn]] void unexpected(std::string_view wanted) const
    {
        constexpr std::size_t shown = 12;
        const std::string found =
            position_ < text_.size() ? in_quotes(text_.substr(position_, shown)) : std::string("its end");
        fail(path_, "has {} at character {} of its header, where {} is needed.", found, position_, wanted);
    }

    std::string_view text_;
    const std::filesystem::path& path_;
    std::size_t position_ = 0;
    std::optional<std::string> descr_;
    std::optional<bool> fortran_order_;
    std::optional<Shape> shape_;
};

/// Reads the header's length, a little-endian number of 2 bytes in version 1.0 and 4 bytes later.
std::uint32_t read_length(InputFile& file, std::int64_t length_bytes)
{
    if (file.remaining() < length_bytes) {
        fail(file.path(), "ends in the middle of its .npy header; the file is cut short.");
    }
    std::array<std::uint8_t, 4> bytes{};
    file.read(bytes.data(), length_bytes);
    std::uint32_t length = 0;
    for (std::size_t i = bytes.size(); i-- > 0;) {
        length = (length << 8) | bytes.at(i);
    }
    return length;
}

} // namespace

NpyHeader parse_npy_header(std::string_view text, const std::filesystem::path& path)
{
    return DictionaryParser(text, path).parse();
}

NpyHeader read_npy_header(InputFile& file)
{
    std::string prefix(prefix_bytes, '\0');
    if (file.remaining() < static_cast<std::int64_t>(prefix_bytes)) {
        fail(file.path(), "has {} bytes, too few for a .npy file; its header alone is longer.", file.size());
    }
    file.read(prefix.data(), static_cast<std::int64_t>(prefix_bytes));
    if (!prefix.starts_with(magic)) {
        fail(file.path(), "does not begin with the magic string of a .npy file; only .npy files are allowed.");
    }
    const int major = static_cast<unsigned char>(prefix.at(magic.size()));
    const int minor = static_cast<unsigned char>(prefix.at(magic.size() + 1));
    if (major < 1 || major > 3 || minor != 0) {
        fail(file.path(), "is of .npy version {}.{}; 1.0, 2.0 and 3.0 are allowed.", major, minor);
    }
    const std::uint32_t length = read_length(file, major == 1 ? 2 : 4);
    if (length > longest_dictionary) {
        fail(file.path(), "gives its header {} bytes; at most {} are allowed.", length, longest_dictionary);
    }
    if (length > file.remaining()) {
        fail(file.path(), "gives its header {} bytes but ends after {} of them; the file is cut short.", length,
             file.remaining());
    }
    std::string text(length, '\0');
    file.read(text.data(), length);
    return parse_npy_header(text, file.path());
}

std::string npy_header_text(std::string_view descr, const Shape& shape)
{
    constexpr std::size_t fixed_bytes = prefix_bytes + 2 + 1; // magic, version, length; and the newline
    std::string dictionary = fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({}{}), }}", descr,
                                         joined(shape), shape.size() == 1 ? "," : "");
    const std::size_t unpadded = fixed_bytes + dictionary.size();
    dictionary.append((alignment - unpadded % alignment) % alignment, ' ');
    dictionary += '\n';

    std::string header(magic);
    header += {'\x01', '\x00'};
    header += static_cast<char>(dictionary.size() & 0xff);
    header += static_cast<char>(dictionary.size() >> 8);
    return header + dictionary;
}

} // namespace flashomp::io
