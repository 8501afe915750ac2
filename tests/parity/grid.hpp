// The cells of FlashAttention-2's correctness grid: pair of lengths x head_dim x mask x score modification x heads x
// dropout x dtype, 62,208 of them.
#pragma once

#include "support/attention_case.hpp"
#include "support/features.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <fmt/format.h>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace flashomp::testing {

struct Pair {
    std::int64_t queries, keys;

    [[nodiscard]] std::int64_t scores() const { return queries * keys; }

    /// The rule compares the largest of many errors: where a head has few visible scores, a larger batch makes them
    /// many. `mask` is that of a Cell.
    [[nodiscard]] std::int64_t batch(int mask) const
    {
        const std::int64_t corner = std::min(queries, keys); // a causal mask may leave a triangle of this size
        const bool is_corner = (mask == 1 && queries < keys) || (mask == 2 && queries > keys);
        const std::int64_t visible = is_corner ? corner * (corner + 1) / 2 : scores();
        const std::int64_t wanted = visible < 20 ? 24 : visible < 3000 ? 6 : visible < 30000 ? 2 : 1;
        return std::min(wanted, std::max<std::int64_t>(1, 120000 / keys)); // bounds the reference's memory
    }
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
/// head_dim and head_dim_v beyond FlashAttention-2's: those of Gemma 4 and of multi-head latent attention, and odd
/// ones.
constexpr std::array<std::array<std::int64_t, 2>, 5> wide_head_dims{
    {{288, 288}, {320, 320}, {512, 512}, {576, 512}, {301, 260}}};
constexpr std::array grid_dtypes{DType::float32, DType::bfloat16, DType::float16};

/// FLASHOMP_FULL_GRID=1 asks for every cell, N > 1 for every Nth; 0, the quick subset, when it is not set.
inline int full_grid()
{
    const char* text = std::getenv("FLASHOMP_FULL_GRID");
    return text == nullptr ? 0 : std::max(0, std::atoi(text));
}

/// What varies at one pair and head_dim: 4 masks x 4 score modifications x 3 kinds of heads x 2.
struct Cell {
    static constexpr int count = 96;
    static constexpr std::array masks{"full", "top_left", "bottom_right", "window"};
    static constexpr std::array modifications{"none", "alibi", "softcap", "alibi+softcap"};
    static constexpr std::array heads_modes{"mha", "gqa", "mqa"};
    static constexpr std::array<std::array<std::int64_t, 2>, 3> head_counts{{{2, 2}, {4, 2}, {2, 1}}};

    explicit Cell(int n)
        : number(n), mask(n % 4), modification(n / 4 % 4), heads(n / 16 % 3), has_dropout(n / 48 % 2 == 1)
    {
    }

    int number, mask, modification, heads;
    bool has_dropout;

    [[nodiscard]] const char* mask_name() const { return masks.at(static_cast<std::size_t>(mask)); }
    [[nodiscard]] const char* heads_name() const { return heads_modes.at(static_cast<std::size_t>(heads)); }
    [[nodiscard]] std::string name() const
    {
        return fmt::format("{} {} {} dropout {}", mask_name(), modifications.at(static_cast<std::size_t>(modification)),
                           heads_name(), has_dropout ? 0.17 : 0.0);
    }

    /// The same problem in every dtype if the inputs are common. head_dim_v 0: head_dim.
    [[nodiscard]] AttentionCase make(const Pair& pair, std::int64_t head_dim, DType dtype, std::uint64_t seed,
                                     Inputs inputs, std::int64_t head_dim_v = 0) const
    {
        const auto [heads_q, heads_kv] = head_counts.at(static_cast<std::size_t>(heads));
        AttentionCase attention({pair.batch(mask), heads_q, heads_kv, pair.queries, pair.keys, head_dim,
                                 head_dim_v > 0 ? head_dim_v : head_dim},
                                dtype, seed, inputs);
        Options& options = attention.options;
        options.causal = mask == 1 ? Causal::top_left : mask == 2 ? Causal::bottom_right : Causal::none;
        if (mask == 3) {
            Draw draw(seed);
            options.window = {draw(1, pair.keys - 1), draw(1, pair.keys - 1)}; // two keys at least, see can_judge_dq()
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

    /// Whether the rule says anything about dQ: one query that sees one key has p = 1, so standard attention finds its
    /// dS = p·(dP − Σ p·dP) = 0 without error in any precision. flashomp takes D = Σ dO∘O for Σ p·dP
    /// (docs/algorithm.md, section 8), and D has an error where O is inexact: dropout's factor makes O inexact in 16
    /// bits. The rule holds for the other results.
    [[nodiscard]] bool can_judge_dq(const Pair& pair, DType dtype) const
    {
        return dtype == DType::float32 || pair.queries > 1 || mask != 1 || !has_dropout;
    }
};

/// One test: of the quick subset, a pair in one dtype; of the full grid, a pair, a head_dim and a mask with MHA or with
/// GQA and MQA. An MQA cell is the first group of its GQA cell, which has its exact solution already.
struct GridTest {
    Pair pair{};
    DType dtype = DType::float32;
    std::int64_t head_dim = 0; ///< 0 in the quick subset
    bool is_grouped = false;
    int mask = 0;

    [[nodiscard]] bool is_quick() const { return head_dim == 0; }

    [[nodiscard]] std::string name() const
    {
        const std::string base = fmt::format("{}x{}", pair.queries, pair.keys);
        return is_quick() ? fmt::format("{}_{}", base, name_of(dtype))
                          : fmt::format("{}_d{}_{}_{}", base, head_dim, is_grouped ? "gqa_mqa" : "mha",
                                        Cell::masks.at(static_cast<std::size_t>(mask)));
    }

    [[nodiscard]] std::vector<DType> dtypes() const
    {
        return is_quick() ? std::vector<DType>{dtype} : std::vector<DType>(grid_dtypes.begin(), grid_dtypes.end());
    }

    /// Numbers a test's pair and dtype: the subsets of cells start at different places for different tests.
    [[nodiscard]] int rotation() const
    {
        return static_cast<int>(29 * pair.queries + 7 * pair.keys) + (is_quick() ? 53 * static_cast<int>(dtype) : 0);
    }

    /// Different for all cells of a pair and head_dim.
    [[nodiscard]] std::uint64_t seed(std::int64_t of_head_dim, const Cell& cell) const
    {
        return static_cast<std::uint64_t>(rotation() + 1000 * of_head_dim + 1000000 * cell.number);
    }

    /// The cell that is judged by a part of what `cell` is: MQA by GQA.
    [[nodiscard]] std::optional<Cell> shared(const Cell& cell) const
    {
        return is_quick() || !is_grouped ? std::nullopt : std::optional(Cell(cell.number + 16));
    }

    /// The cells of one head_dim, without those that shared() adds. `index` is the place of the head_dim in the list.
    [[nodiscard]] std::vector<Cell> cells(int index) const
    {
        std::vector<Cell> chosen;
        const std::int64_t scores = pair.scores();
        if (is_quick()) {
            const int subset = scores < 200000 ? 1 : scores < 2000000 ? 6 : 12; // every how many head dims
            if (index % subset == rotation() % subset) {
                chosen.emplace_back((37 * index + rotation()) % Cell::count);
            }
            return chosen;
        }
        // Long decoding is not in FlashAttention-2's grid.
        const int stride = full_grid() * (pair.keys < 100000 ? 1 : 24);
        for (int number = 0; number < Cell::count; ++number) {
            const Cell cell(number);
            const bool is_taken = (rotation() + 101 * index + number) % stride == 0;
            if (is_taken && cell.heads == (is_grouped ? 1 : 0) && cell.mask == mask) {
                chosen.push_back(cell);
            }
        }
        return chosen;
    }

    /// Roughly its time: the reference's matrix products, and what goes with the scores and the inputs.
    [[nodiscard]] double cost(std::size_t cell_count) const
    {
        const double heads_q =
            static_cast<double>(pair.batch(mask)) * (is_grouped ? 4.7 : 2.0); // MQA costs no reference
        const double visible = mask == 0 ? 1.0 : mask == 3 ? 0.67 : 0.55;
        const auto d = static_cast<double>(head_dim);
        return static_cast<double>(cell_count) * heads_q *
               (visible * static_cast<double>(pair.scores()) * (d + 75) +
                110.0 * (static_cast<double>(pair.queries) + 0.5 * static_cast<double>(pair.keys)) * d);
    }
};

inline std::vector<GridTest> quick_tests()
{
    std::vector<GridTest> tests;
    for (const Pair& pair : grid_pairs) {
        for (const DType dtype : grid_dtypes) {
            tests.push_back({pair, dtype});
        }
    }
    return tests;
}

/// The shards that GoogleTest deals tests to, one after the other.
inline std::size_t shards()
{
    const char* text = std::getenv("GTEST_TOTAL_SHARDS");
    return text == nullptr ? 1 : static_cast<std::size_t>(std::max(1, std::atoi(text)));
}

/// Ordered so that shards take the same time: the most expensive first, and of every round of dealing the most
/// expensive to the shard that has the least so far.
inline std::vector<GridTest> full_tests()
{
    std::vector<Pair> pairs(grid_pairs.begin(), grid_pairs.end());
    pairs.insert(pairs.end(), long_decoding_pairs.begin(), long_decoding_pairs.end());
    std::vector<std::pair<double, GridTest>> tests;
    for (const Pair& pair : pairs) {
        for (std::size_t index = 0; index < grid_head_dims.size(); ++index) {
            for (int kind = 0; kind < 8; ++kind) {
                const GridTest test{pair, DType::float32, grid_head_dims.at(index), kind / 4 == 1, kind % 4};
                const std::size_t cells = test.cells(static_cast<int>(index)).size();
                if (cells > 0) {
                    tests.emplace_back(test.cost(cells), test);
                }
            }
        }
    }
    std::stable_sort(tests.begin(), tests.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
    std::vector<double> loads(shards());
    std::vector<GridTest> ordered;
    for (std::size_t first = 0; first < tests.size(); first += loads.size()) {
        const std::size_t count = std::min(loads.size(), tests.size() - first);
        std::vector<std::size_t> by_load(count); // the last round, a short one, is dealt to the first shards
        std::iota(by_load.begin(), by_load.end(), std::size_t{0});
        std::stable_sort(by_load.begin(), by_load.end(),
                         [&loads](std::size_t a, std::size_t b) { return loads[a] < loads[b]; });
        ordered.resize(first + count);
        for (std::size_t n = 0; n < count; ++n) {
            const auto& [cost, test] = tests[first + n];
            ordered[first + by_load[n]] = test;
            loads[by_load[n]] += cost;
        }
    }
    return ordered;
}

inline void PrintTo(const GridTest& test, std::ostream* out)
{
    *out << test.name();
}

inline std::vector<GridTest> grid_tests()
{
    return full_grid() > 0 ? full_tests() : quick_tests();
}

} // namespace flashomp::testing
