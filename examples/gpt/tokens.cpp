#include "tokens.hpp"

#include "flashomp/error.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <unordered_map>

#include <fmt/format.h>

namespace gpt {

namespace {

using Id = Tokens::Id;
using Merge = Tokens::Merge;

enum class Kind : std::uint8_t { blank, letter, digit, other };

Kind kind_of(char byte)
{
    const auto c = static_cast<unsigned char>(byte);
    if (c == ' ' || (c >= '\t' && c <= '\r')) {
        return Kind::blank;
    }
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c >= 0x80) { // bytes of UTF-8 beyond ASCII are letters
        return Kind::letter;
    }
    return c >= '0' && c <= '9' ? Kind::digit : Kind::other;
}

/// The word at the front of a text that is not empty.
std::string_view first_word(std::string_view text)
{
    std::size_t end = 0;
    if (text[0] == ' ' && text.size() > 1 && kind_of(text[1]) != Kind::blank) {
        end = 1;
    }
    const Kind kind = kind_of(text[end]);
    while (end < text.size() && kind_of(text[end]) == kind) {
        ++end;
    }
    // The last blank of several belongs to the word behind it.
    if (kind == Kind::blank && end > 1 && end < text.size() && text[end - 1] == ' ') {
        --end;
    }
    return text.substr(0, end);
}

/// Puts `to` for every pair `merge` from left to right.
void replace(std::vector<Id>& word, Merge merge, Id to)
{
    std::size_t kept = 0;
    for (std::size_t i = 0; i < word.size(); ++i) {
        const bool is_pair = i + 1 < word.size() && word[i] == merge.first && word[i + 1] == merge.second;
        word[kept++] = is_pair ? to : word[i];
        i += is_pair ? 1 : 0;
    }
    word.resize(kept);
}

std::vector<Id> bytes_of(std::string_view word)
{
    std::vector<Id> tokens(word.size());
    std::transform(word.begin(), word.end(), tokens.begin(), [](char c) { return static_cast<unsigned char>(c); });
    return tokens;
}

struct CountedWord {
    std::vector<Id> tokens;
    std::int64_t count = 0;
};

std::vector<CountedWord> counted_words(std::string_view text)
{
    std::unordered_map<std::string_view, std::int64_t> counts;
    while (!text.empty()) {
        const std::string_view word = first_word(text);
        ++counts[word];
        text.remove_prefix(word.size());
    }
    std::vector<CountedWord> words;
    for (const auto& [word, count] : counts) {
        words.push_back({bytes_of(word), count});
    }
    return words;
}

} // namespace

Tokens::Tokens(std::vector<Merge> merges) : merges_(std::move(merges))
{
    for (int byte = 0; byte < bytes; ++byte) {
        texts_.emplace_back(1, static_cast<char>(byte));
    }
    for (const auto& [left, right] : merges_) {
        if (left >= texts_.size() || right >= texts_.size() || texts_.size() >= most) {
            throw flashomp::Error(fmt::format("merge {} joins tokens {} and {}; there are {} tokens before it.",
                                              texts_.size() - bytes, left, right, texts_.size()));
        }
        texts_.push_back(texts_[left] + texts_[right]);
    }
}

Tokens Tokens::learn(std::string_view text, int vocabulary)
{
    if (vocabulary <= bytes) {
        return Tokens();
    }
    std::vector<CountedWord> words = counted_words(text);
    std::map<Merge, std::int64_t> counts;
    std::map<Merge, std::set<std::size_t>> places; // words that have, or had, the pair
    const auto count_pairs = [&](std::size_t index, std::int64_t sign) {
        const CountedWord& word = words[index];
        for (std::size_t i = 0; i + 1 < word.tokens.size(); ++i) {
            const Merge pair(word.tokens[i], word.tokens[i + 1]);
            counts[pair] += sign * word.count;
            if (sign > 0) {
                places[pair].insert(index);
            }
        }
    };
    for (std::size_t index = 0; index < words.size(); ++index) {
        count_pairs(index, 1);
    }
    std::vector<Merge> merges;
    while (bytes + static_cast<int>(merges.size()) < vocabulary) {
        const auto best = std::max_element(counts.begin(), counts.end(), [](const auto& left, const auto& right) {
            return left.second < right.second; // the first, which is the smallest, of equal ones
        });
        if (best == counts.end() || best->second < 2) {
            break;
        }
        const Merge merge = best->first;
        const auto token = static_cast<Id>(bytes + merges.size());
        merges.push_back(merge);
        const std::set<std::size_t> changed = std::move(places[merge]);
        places.erase(merge);
        for (const std::size_t index : changed) {
            count_pairs(index, -1);
            replace(words[index].tokens, merge, token);
            count_pairs(index, 1);
        }
        counts.erase(merge);
    }
    return Tokens(std::move(merges));
}

std::vector<Id> Tokens::encode(std::string_view text) const
{
    if (merges_.empty()) {
        return bytes_of(text);
    }
    std::map<Merge, std::size_t> ranks;
    for (std::size_t rank = 0; rank < merges_.size(); ++rank) {
        ranks.emplace(merges_[rank], rank);
    }
    std::unordered_map<std::string_view, std::vector<Id>> known;
    std::vector<Id> tokens;
    while (!text.empty()) {
        const std::string_view word = first_word(text);
        const auto [entry, is_new] = known.try_emplace(word);
        if (is_new) { // the merges in their order, as they were learnt
            entry->second = bytes_of(word);
            for (;;) {
                std::size_t first = std::numeric_limits<std::size_t>::max();
                for (std::size_t i = 0; i + 1 < entry->second.size(); ++i) {
                    const auto found = ranks.find({entry->second[i], entry->second[i + 1]});
                    first = found == ranks.end() ? first : std::min(first, found->second);
                }
                if (first == std::numeric_limits<std::size_t>::max()) {
                    break;
                }
                replace(entry->second, merges_[first], static_cast<Id>(bytes + first));
            }
        }
        tokens.insert(tokens.end(), entry->second.begin(), entry->second.end());
        text.remove_prefix(word.size());
    }
    return tokens;
}

std::string Tokens::decode(std::span<const Id> tokens) const
{
    std::string text;
    for (const Id token : tokens) {
        text += texts_[token];
    }
    return text;
}

} // namespace gpt
