// Bands against the definition, element by element.
#include "algorithm/mask.hpp"

#include <gtest/gtest.h>
#include <random>

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
