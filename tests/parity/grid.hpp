// The cells of FlashAttention-2's correctness grid: pair of lengths x head_dim x mask x score modification x heads x
// dropout x dtype.
#pragma once

#include "support/attention_case.hpp"
#include "support/features.hpp"

#include <array>
#include <cstdint>
#include <cstdlib>
#include <fmt/format.h>
#include <string>
#include <vector>

namespace flashomp::testing {

struct Pair {
    std::int64_t queries, keys;

    [[nodiscard]] std::int64_t scores() const { return queries * keys; }
};

constexpr std::array<Pair, 18> grid_pairs{{{113, 203},
                                           {128, 217},
                                           {113, 211},
                                           {108, 256},
                                           {256, 512},
                                           {512, 256},
                                           {1024, 1024},
                                           {1023, 1024},
                                           {1024, 1023},
                                           {2048, 2048},
                                           {1, 147},
                                           {1, 239},
                                           {3, 799},
                                           {127, 512},
                                           {127, 513},
                                           {799, 3},
                                           {64, 2048},
                                           {16, 20000}}};
constexpr std::array<Pair, 2> long_decoding_pairs{{{1, 131072}, {16, 131072}}};
constexpr std::array<std::int64_t, 12> grid_head_dims{32, 40, 59, 64, 80, 96, 111, 128, 160, 192, 224, 256};
constexpr std::array grid_dtypes{DType::float32, DType::bfloat16, DType::float16};

/// FLASHOMP_FULL_GRID=1 asks for every cell, N > 1 for every Nth; 0, the quick subset, when it is not set.
inline int full_grid()
{
    const char* text = std::getenv("FLASHOMP_FULL_GRID");
    return text == nullptr ? 0 : std::max(0, std::atoi(text));
}

/// What varies at one pair, head_dim and dtype: 4 masks x 4 score modifications x 3 kinds of heads x 2.
struct Cell {
    static constexpr int count = 96;
    static constexpr std::array masks{"full", "top_left", "bottom_right", "window"};
    static constexpr std::array modifications{"none", "alibi", "softcap", "alibi+softcap"};
    static constexpr std::array heads_modes{"mha", "gqa", "mqa"};

    explicit Cell(int number)
        : mask(number % 4), modification(number / 4 % 4), heads(number / 16 % 3), has_dropout(number / 48 % 2 == 1)
    {
    }

    int mask, modification, heads;
    bool has_dropout;

    [[nodiscard]] std::string name() const
    {
        return fmt::format("{} {} {} dropout {}", masks.at(static_cast<std::size_t>(mask)),
                           modifications.at(static_cast<std::size_t>(modification)),
                           heads_modes.at(static_cast<std::size_t>(heads)), has_dropout ? 0.17 : 0.0);
    }

    [[nodiscard]] AttentionCase make(const Pair& pair, std::int64_t head_dim, DType dtype, std::uint64_t seed) const
    {
        static constexpr std::array<std::array<std::int64_t, 2>, 3> head_counts{{{2, 2}, {4, 2}, {3, 1}}};
        const auto [heads_q, heads_kv] = head_counts.at(static_cast<std::size_t>(heads));
        // The rule compares the largest of many errors: where few scores are visible, a larger batch makes them many.
        const std::int64_t batch = std::min(pair.queries, pair.keys) < 16 ? 6 : pair.scores() < 30000 ? 2 : 1;
        AttentionCase attention({batch, heads_q, heads_kv, pair.queries, pair.keys, head_dim, head_dim}, dtype, seed);
        Options& options = attention.options;
        options.causal = mask == 1 ? Causal::top_left : mask == 2 ? Causal::bottom_right : Causal::none;
        if (mask == 3) {
            Draw draw(seed);
            options.window = {draw(1, pair.keys - 1), draw(1, pair.keys - 1)}; // two keys at least, see can_judge()
        }
        if (modification % 2 == 1) {
            attention.add_alibi(true);
        }
        if (modification >= 2) {
            options.softcap = 50.0;
        }
        if (has_dropout) {
            attention.add_dropout(0.17);
        }
        return attention;
    }
};

/// One test: a pair, a dtype and, in the full grid, one head_dim (0 stands for all of them).
struct GridTest {
    Pair pair{};
    DType dtype = DType::float32;
    std::int64_t head_dim = 0;

    [[nodiscard]] std::string name() const
    {
        const std::string base = fmt::format("{}x{}_{}", pair.queries, pair.keys, name_of(dtype));
        return head_dim == 0 ? base : fmt::format("{}_d{}", base, head_dim);
    }

    /// Numbers a test's pair and dtype: the subsets of cells start at different places for different tests.
    [[nodiscard]] int rotation() const
    {
        return static_cast<int>(29 * pair.queries + 7 * pair.keys) + 53 * static_cast<int>(dtype);
    }

    /// Whether the rule says anything: one query that sees one key has p = 1, so standard attention finds its dq = 0
    /// without error in any precision. D = sum(dO*O) does not: dropout's scale makes O inexact in 16 bits.
    [[nodiscard]] bool can_judge(const Cell& cell) const
    {
        return dtype == DType::float32 || pair.queries > 1 || cell.mask != 1 || !cell.has_dropout;
    }

    /// The cells of one head_dim. `index` is the place of the head_dim in the list.
    [[nodiscard]] std::vector<Cell> cells(int index) const
    {
        std::vector<Cell> chosen;
        const std::int64_t scores = pair.scores();
        if (const int every = full_grid(); every > 0) {
            // The oracle takes half a microsecond a score: the largest pairs get a part of the cells at each head_dim.
            const int stride = every * (scores < 400000 ? 1 : pair.keys < 100000 ? 6 : 24);
            for (int number = (rotation() + index) % stride; number < Cell::count; number += stride) {
                chosen.emplace_back(number);
            }
        } else {
            const int subset = scores < 200000 ? 1 : scores < 2000000 ? 6 : 12; // every how many head dims
            if (index % subset == rotation() % subset) {
                chosen.emplace_back((37 * index + rotation()) % Cell::count);
            }
        }
        std::erase_if(chosen, [this](const Cell& cell) { return !can_judge(cell); });
        return chosen;
    }
};

inline void PrintTo(const GridTest& test, std::ostream* out)
{
    *out << test.name();
}

inline std::vector<GridTest> grid_tests()
{
    std::vector<Pair> pairs(grid_pairs.begin(), grid_pairs.end());
    if (full_grid() > 0) {
        pairs.insert(pairs.end(), long_decoding_pairs.begin(), long_decoding_pairs.end());
    }
    std::vector<GridTest> tests;
    for (const Pair& pair : pairs) {
        for (const DType dtype : grid_dtypes) {
            if (full_grid() == 0) {
                tests.push_back({pair, dtype, 0});
                continue;
            }
            for (const std::int64_t head_dim : grid_head_dims) {
                tests.push_back({pair, dtype, head_dim});
            }
        }
    }
    return tests;
}

} // namespace flashomp::testing
