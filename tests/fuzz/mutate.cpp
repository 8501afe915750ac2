#include "mutate.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstddef>
#include <string_view>

namespace flashomp::fuzz {

namespace {

using Difference = Bytes::difference_type;

constexpr std::size_t longest_growth = 65536;

/// What numbers and strings in text become.
constexpr std::array<std::string_view, 24> words{"0",
                                                 "-1",
                                                 "1",
                                                 "2147483647",
                                                 "2147483648",
                                                 "4294967296",
                                                 "9223372036854775807",
                                                 "9223372036854775808",
                                                 "18446744073709551615",
                                                 "18446744073709551616",
                                                 "-9223372036854775809",
                                                 "1e999",
                                                 "1.5",
                                                 "0.0",
                                                 "1e-999",
                                                 "null",
                                                 "true",
                                                 "{}",
                                                 "[]",
                                                 "\"\"",
                                                 "\x1b[2J",
                                                 "\xc2\x9b",
                                                 "\xff\xfe",
                                                 "\\u0000"};

class Mutator {
public:
    Mutator(const std::vector<Bytes>& corpus, std::mt19937_64& random) : corpus_(corpus), random_(random)
    {
        bytes_ = corpus_[below(corpus_.size())];
        longest_ = bytes_.size() + longest_growth;
    }

    Bytes result()
    {
        for (std::size_t changes = 1 + below(8); changes > 0; --changes) {
            change();
        }
        bytes_.resize(std::min(bytes_.size(), longest_));
        return std::move(bytes_);
    }

private:
    /// A number from 0 to `count` - 1; 0 for a count of 0. Not std::uniform_int_distribution, which each standard
    /// library may carry out in its own way.
    std::size_t below(std::size_t count) { return count == 0 ? 0 : static_cast<std::size_t>(random_() % count); }

    [[nodiscard]] Bytes::iterator at(std::size_t position)
    {
        return bytes_.begin() + static_cast<Difference>(position);
    }

    void change()
    {
        const std::size_t place = below(bytes_.size() + 1);
        switch (below(9)) {
        case 0:
            flip_bit();
            return;
        case 1:
            if (!bytes_.empty()) {
                bytes_[below(bytes_.size())] = static_cast<std::uint8_t>(random_());
            }
            return;
        case 2:
            bytes_.insert(at(place), static_cast<std::uint8_t>(random_()));
            return;
        case 3:
            bytes_.erase(at(place), at(place + run_from(place)));
            return;
        case 4:
            repeat(place);
            return;
        case 5:
            replace_number();
            return;
        case 6:
            set_binary_number();
            return;
        case 7:
            splice(place);
            return;
        default:
            insert_word(place);
        }
    }

    /// The length of a run that starts at `place`: mostly short.
    std::size_t run_from(std::size_t place)
    {
        const std::size_t most = bytes_.size() - place;
        return std::min(most, below(below(4) == 0 ? most + 1 : 17));
    }

    void flip_bit()
    {
        if (!bytes_.empty()) {
            std::uint8_t& byte = bytes_[below(bytes_.size())];
            byte = static_cast<std::uint8_t>(byte ^ (1U << below(8)));
        }
    }

    void repeat(std::size_t place)
    {
        const Bytes run(at(place), at(place + run_from(place)));
        const std::size_t times = below(below(8) == 0 ? 4000 : 8);
        Bytes more;
        for (std::size_t i = 0; i < times && more.size() + run.size() < longest_growth; ++i) {
            more.insert(more.end(), run.begin(), run.end());
        }
        bytes_.insert(at(place), more.begin(), more.end());
    }

    /// Another number in place of one that stands in the text.
    void replace_number()
    {
        const std::size_t start = below(bytes_.size() + 1);
        const auto is_digit = [](std::uint8_t byte) { return std::isdigit(byte) != 0; };
        const auto first = std::find_if(at(start), bytes_.end(), is_digit);
        const auto last = std::find_if_not(first, bytes_.end(), is_digit);
        const std::string_view word = words[below(words.size())];
        const auto where = bytes_.erase(first, last);
        bytes_.insert(where, word.begin(), word.end());
    }

    void insert_word(std::size_t place)
    {
        const std::string_view word = words[below(words.size())];
        bytes_.insert(at(place), word.begin(), word.end());
    }

    /// A little-endian number of 1 to 8 bytes at its limits, as lengths and extents are.
    void set_binary_number()
    {
        constexpr std::array<std::uint64_t, 8> numbers{0, 1, 0x7f, 0xff, 0x7fffffff, 0xffffffff, ~0ULL >> 1, ~0ULL};
        std::uint64_t number = numbers[below(numbers.size())] + below(3) - 1;
        const std::size_t size = std::size_t{1} << below(4);
        for (std::size_t i = below(bytes_.size() + 1), end = std::min(bytes_.size(), i + size); i < end; ++i) {
            bytes_[i] = static_cast<std::uint8_t>(number);
            number >>= 8;
        }
    }

    /// A run of another input.
    void splice(std::size_t place)
    {
        const Bytes& other = corpus_[below(corpus_.size())];
        const std::size_t first = below(other.size() + 1);
        const std::size_t last = first + below(other.size() - first + 1);
        bytes_.insert(at(place), other.begin() + static_cast<Difference>(first),
                      other.begin() + static_cast<Difference>(last));
    }

    const std::vector<Bytes>& corpus_;
    std::mt19937_64& random_;
    Bytes bytes_;
    std::size_t longest_ = 0;
};

} // namespace

Bytes mutated(const std::vector<Bytes>& corpus, std::mt19937_64& random)
{
    return Mutator(corpus, random).result();
}

} // namespace flashomp::fuzz
