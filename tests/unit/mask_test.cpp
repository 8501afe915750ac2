// Bands against the definition, element by element.
#include "algorithm/seams.hpp"

#include <gtest/gtest.h>
#include <random>
#include <vector>

namespace flashomp::offload {
namespace {

/// Step 5 of the semantics, read literally.
bool keeps(const Params& p, int nq, int nk, int i, int j)
{
    const int delta = nk - nq;
    bool kept = true;
    if (p.causal == Alignment::top_left) {
        kept = kept && j <= i;
    } else if (p.causal == Alignment::bottom_right) {
        kept = kept && j <= i + delta;
    }
    if (p.window_left >= 0) {
        kept = kept && i + delta - p.window_left <= j;
    }
    if (p.window_right >= 0) {
        kept = kept && j <= i + delta + p.window_right;
    }
    return kept;
}

TEST(Band, IsTheIntersectionOfTheMasks)
{
    std::mt19937 random(7);
    const auto pick = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
    for (int round = 0; round < 500; ++round) {
        Params p;
        const int nq = pick(1, 40);
        const int nk = pick(1, 40);
        p.causal = static_cast<Alignment>(pick(0, 2));
        p.window_left = pick(-1, 50);
        p.window_right = pick(-1, 50);
        const Band band = band_of(p, {0, 0, nq, nk});
        for (int i = 0; i < nq; ++i) {
            for (int j = 0; j < nk; ++j) {
                ASSERT_EQ(band.keeps(i, j), keeps(p, nq, nk, i, j)) << i << " " << j << " of " << nq << "x" << nk;
            }
        }
        const int i0 = pick(0, nq - 1);
        const int i1 = pick(i0 + 1, nq);
        const int j0 = pick(0, nk - 1);
        const int j1 = pick(j0 + 1, nk);
        const Range keys = band.keys(i0, i1);
        const Range queries = band.queries(j0, j1);
        bool all = true;
        for (int i = i0; i < i1; ++i) {
            for (int j = 0; j < nk; ++j) {
                EXPECT_TRUE(!keeps(p, nq, nk, i, j) || (j >= keys.begin && j < keys.end));
            }
            for (int j = j0; j < j1; ++j) {
                all = all && keeps(p, nq, nk, i, j);
            }
        }
        for (int j = j0; j < j1; ++j) {
            for (int i = 0; i < nq; ++i) {
                EXPECT_TRUE(!keeps(p, nq, nk, i, j) || (i >= queries.begin && i < queries.end));
            }
        }
        const Range inner_keys = band.interior_keys(i0, i1);
        const Range inner_queries = band.interior_queries(j0, j1);
        EXPECT_EQ(j0 >= inner_keys.begin && j1 <= inner_keys.end, all);
        EXPECT_EQ(i0 >= inner_queries.begin && i1 <= inner_queries.end, all);
        EXPECT_FALSE(band.keeps(nq, 0));
        EXPECT_FALSE(band.keeps(0, nk));
    }
}

/// Up to two stretches of a sequence of so many rows, in `rows` the positions of theirs.
Placement pick_placement(std::mt19937& random, int whole, std::vector<int>& rows)
{
    const auto pick = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
    const int first = pick(0, whole - 1);
    const int count = pick(1, whole - first);
    const int gap = pick(0, whole - first - count);
    const int others = pick(0, whole - first - count - gap);
    for (int row = 0; row < count + others; ++row) {
        rows.push_back(first + row + (row >= count ? gap : 0));
    }
    return {first, count, others > 0 ? gap : 0};
}

TEST(Band, OfShardsIsThatOfTheirPositions)
{
    std::mt19937 random(8);
    const auto pick = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
    for (int round = 0; round < 1000; ++round) {
        Params p;
        const int nq = pick(1, 40);
        const int nk = pick(1, 40);
        std::vector<int> queries, keys;
        p.causal = static_cast<Alignment>(pick(0, 2));
        p.window_left = pick(-1, 50);
        p.window_right = pick(-1, 50);
        p.has_positions = true;
        p.whole_q = nq;
        p.whole_k = nk;
        p.place_q = pick_placement(random, nq, queries);
        p.place_k = pick_placement(random, nk, keys);
        const auto rows = static_cast<int>(queries.size());
        const auto columns = static_cast<int>(keys.size());
        const auto sees = [&](int i, int j) {
            return keeps(p, nq, nk, queries[static_cast<std::size_t>(i)], keys[static_cast<std::size_t>(j)]);
        };
        const auto expect_right = [&](const auto& band) {
            const int i0 = pick(0, rows - 1), i1 = pick(i0 + 1, rows);
            const int j0 = pick(0, columns - 1), j1 = pick(j0 + 1, columns);
            const Range seen_keys = band.keys(i0, i1), seen_queries = band.queries(j0, j1);
            bool all = true;
            for (int i = 0; i < rows; ++i) {
                for (int j = 0; j < columns; ++j) {
                    ASSERT_EQ(band.keeps(i, j), sees(i, j)) << i << " " << j << " of " << rows << "x" << columns;
                    const bool is_row = i >= i0 && i < i1, is_column = j >= j0 && j < j1;
                    EXPECT_TRUE(!sees(i, j) || !is_row || (j >= seen_keys.begin && j < seen_keys.end));
                    EXPECT_TRUE(!sees(i, j) || !is_column || (i >= seen_queries.begin && i < seen_queries.end));
                    all = all && (sees(i, j) || !is_row || !is_column);
                }
            }
            const Range inner_keys = band.interior_keys(i0, i1), inner_queries = band.interior_queries(j0, j1);
            EXPECT_EQ(j0 >= inner_keys.begin && j1 <= inner_keys.end, all);
            EXPECT_EQ(i0 >= inner_queries.begin && i1 <= inner_queries.end, all);
            EXPECT_FALSE(band.keeps(rows, 0));
            EXPECT_FALSE(band.keeps(0, columns));
        };
        expect_right(seamed_band_of(p, {0, 0, rows, columns}));
        if (!has_seam(p)) {
            expect_right(band_of(p, {0, 0, rows, columns}));
        }
    }
}

TEST(Band, HugeWindowsDoNotOverflow)
{
    Params p;
    p.window_left = std::int64_t{1} << 40;
    p.window_right = std::int64_t{1} << 40;
    const Band band = band_of(p, {0, 0, 1 << 30, 1 << 30});
    EXPECT_TRUE(band.keeps((1 << 30) - 1, 0));
    EXPECT_TRUE(band.keeps(0, (1 << 30) - 1));
}

} // namespace
} // namespace flashomp::offload
