// Tokens: the 256 bytes, and pairs of tokens that a byte-pair encoding has merged (Sennrich et al. 2016).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace gpt {

class Tokens {
public:
    using Id = std::uint16_t;
    using Merge = std::pair<Id, Id>;
    static constexpr int bytes = 256, most = 65536;

    /// Bytes alone, or with merges in the order in which they were made. Throws flashomp::Error where one names a token
    /// that is not there yet.
    explicit Tokens(std::vector<Merge> merges = {});

    /// Merges the pair that is most frequent inside the words of the text, the smaller one of two, until there are
    /// `vocabulary` tokens or no pair stands twice. A word is a run of letters, digits, other bytes or blanks, with
    /// the one blank before it.
    [[nodiscard]] static Tokens learn(std::string_view text, int vocabulary);

    [[nodiscard]] std::vector<Id> encode(std::string_view text) const;
    [[nodiscard]] std::string decode(std::span<const Id> tokens) const;

    [[nodiscard]] int vocabulary() const { return static_cast<int>(texts_.size()); }
    [[nodiscard]] std::size_t length(Id token) const { return texts_[token].size(); } ///< in bytes
    [[nodiscard]] const std::vector<Merge>& merges() const { return merges_; }

private:
    std::vector<Merge> merges_;
    std::vector<std::string> texts_; ///< of each token
};

} // namespace gpt
