// The baseline: an n-gram model with interpolated modified Kneser-Ney smoothing (Chen and Goodman 1999, section 3).
#pragma once

#include "tokens.hpp"

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace gpt {

/// P(w|h) = max(c(hw) − D(c(hw)), 0)/N(h) + γ(h)·P(w|h′), where h′ is h without its first token, N(h) = Σ_w c(hw), and
/// γ(h) makes the sum 1. At the highest order c counts occurrences; below, the different tokens that stand before hw.
/// D is one of three discounts for counts of 1, 2 and 3 or more, estimated for each order from n₁, …, n₄, the numbers
/// of n-grams with those counts. Below order 1 all tokens are equally likely.
class NGram {
public:
    NGram(std::span<const Tokens::Id> text, int order, int vocabulary);

    /// −log P of tokens 1, 2, … of a text, each after as many of those before it as the order has.
    [[nodiscard]] std::vector<double> losses(std::span<const Tokens::Id> text) const;

    /// P(token | context), of whose end as much is used as the order has.
    [[nodiscard]] double probability(std::span<const Tokens::Id> context, Tokens::Id token) const;

private:
    /// The n-grams of one length, sorted by (index of the n-gram without its last token, last token).
    struct Level {
        std::vector<std::uint64_t> keys;   ///< that index · 2^16 + token
        std::vector<std::uint32_t> counts; ///< c
        std::vector<std::uint64_t> totals; ///< N(h) for every h, the n-grams of the level below
        std::vector<double> gammas;        ///< γ(h)
        std::array<double, 3> discounts = {};

        [[nodiscard]] std::int64_t find(std::uint64_t prefix, Tokens::Id token) const; ///< −1: not there
    };

    void estimate(Level& level, std::size_t contexts);

    int order_, vocabulary_;
    std::vector<Level> levels_; ///< of lengths 1 to order
};

} // namespace gpt
