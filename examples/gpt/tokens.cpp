#include "tokens.hpp"

#include "flashomp/error.hpp"

#include <algorithm>
#include <limits>
#include <queue>
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

/// Both tokens in one number, which is larger where the pair is.
std::uint32_t key_of(Merge pair)
{
    constexpr unsigned token_bits = 16;
    return static_cast<std::uint32_t>(pair.first) << token_bits | pair.second;
}

/// How often each pair of neighbours stands in the words. A merge changes the words that have its pair and nothing
/// else.
class PairCounts {
public:
    explicit PairCounts(std::vector<CountedWord> words) : words_(std::move(words))
    {
        for (std::size_t index = 0; index < words_.size(); ++index) {
            count(index, 1);
        }
        queue_changed();
    }

    /// The most frequent pair, of equal ones the smallest; or a count of 0 where no pair is left.
    std::pair<std::int64_t, Merge> most_frequent()
    {
        // A count that changed was queued again: the old entry is recognised by its count.
        while (!queue_.empty() && queue_.top().count != pairs_.at(key_of(queue_.top().pair)).count) {
            queue_.pop();
        }
        return queue_.empty() ? std::pair<std::int64_t, Merge>() : std::pair(queue_.top().count, queue_.top().pair);
    }

    /// Puts `token` for the pair everywhere.
    void merge(Merge pair, Id token)
    {
        std::vector<std::size_t> places = std::move(pairs_.at(key_of(pair)).places);
        std::sort(places.begin(), places.end());
        places.erase(std::unique(places.begin(), places.end()), places.end());
        for (const std::size_t index : places) {
            count(index, -1);
            replace(words_[index].tokens, pair, token);
            count(index, 1);
        }
        queue_changed();
    }

private:
    struct Pair {
        std::int64_t count = 0, queued = 0;
        std::vector<std::size_t> places; ///< words that have, or had, the pair
    };
    struct Entry {
        std::int64_t count = 0;
        Merge pair;
        friend bool operator<(const Entry& left, const Entry& right)
        {
            return left.count != right.count ? left.count < right.count : right.pair < left.pair;
        }
    };

    void count(std::size_t index, std::int64_t sign)
    {
        const CountedWord& word = words_[index];
        for (std::size_t i = 0; i + 1 < word.tokens.size(); ++i) {
            const Merge merge(word.tokens[i], word.tokens[i + 1]);
            Pair& pair = pairs_[key_of(merge)];
            pair.count += sign * word.count;
            if (sign > 0) {
                pair.places.push_back(index);
            }
            changed_.push_back(merge);
        }
    }

    void queue_changed()
    {
        for (const Merge& merge : changed_) {
            Pair& pair = pairs_.at(key_of(merge));
            if (pair.count != pair.queued) {
                queue_.push({pair.count, merge});
                pair.queued = pair.count;
            }
        }
        changed_.clear();
    }

    std::vector<CountedWord> words_;
    std::unordered_map<std::uint32_t, Pair> pairs_;
    std::priority_queue<Entry> queue_;
    std::vector<Merge> changed_; ///< pairs whose count may be another one than in the queue
};

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
    PairCounts counts(counted_words(text));
    std::vector<Merge> merges;
    while (bytes + static_cast<int>(merges.size()) < vocabulary) {
        const auto [count, merge] = counts.most_frequent();
        if (count < 2) {
            break;
        }
        counts.merge(merge, static_cast<Id>(bytes + merges.size()));
        merges.push_back(merge);
    }
    return Tokens(std::move(merges));
}

std::vector<Id> Tokens::encode(std::string_view text) const
{
    if (merges_.empty()) {
        return bytes_of(text);
    }
    std::unordered_map<std::uint32_t, std::size_t> ranks;
    for (std::size_t rank = 0; rank < merges_.size(); ++rank) {
        ranks.emplace(key_of(merges_[rank]), rank);
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
                    const auto found = ranks.find(key_of({entry->second[i], entry->second[i + 1]}));
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
