// Shards, the pairs of runs that see each other, routes of blocks, and heads: every rank finds the same, without a
// message.
#include "heads.hpp"
#include "layout.hpp"
#include "ring.hpp"

#include <algorithm>
#include <gtest/gtest.h>
#include <numeric>
#include <random>

namespace flashomp::mpi {
namespace {

TEST(Layout, ShardsHaveEveryRowOnce)
{
    for (const Layout layout : {Layout::contiguous, Layout::zigzag}) {
        for (const int ranks : {1, 2, 3, 7}) {
            for (const std::int64_t length : {0, 1, 2, 5, 13, 64, 1001}) {
                std::vector<int> seen(static_cast<std::size_t>(length));
                std::vector<std::int64_t> rows;
                for (int rank = 0; rank < ranks; ++rank) {
                    const Positions of_rank = positions(layout, rank, ranks, length);
                    rows.push_back(of_rank.rows());
                    for (std::int64_t row = 0; row < of_rank.rows(); ++row) {
                        ++seen[static_cast<std::size_t>(of_rank[row])];
                    }
                }
                EXPECT_TRUE(std::all_of(seen.begin(), seen.end(), [](int times) { return times == 1; }));
                // The same rows as of ranks that know each other's numbers of rows, also of several ranks together.
                EXPECT_EQ(rows_of(rows_of_ranks(layout, rows, 0, ranks)), length);
                for (int rank = 0; rank < ranks; ++rank) {
                    const Positions expected = positions(layout, rank, ranks, length);
                    std::int64_t row = 0;
                    for (const auto& [first, count] : rows_of_ranks(layout, rows, rank, 1)) {
                        for (std::int64_t i = 0; i < count; ++i) {
                            EXPECT_EQ(first + i, expected[row++]);
                        }
                    }
                    EXPECT_EQ(row, expected.rows());
                }
            }
        }
    }
}

TEST(Layout, RanksThatAreNoneAreRefused)
{
    EXPECT_THROW(static_cast<void>(positions(Layout::zigzag, 2, 2, 10)), Error);
    EXPECT_THROW(static_cast<void>(positions(Layout::contiguous, -1, 2, 10)), Error);
    EXPECT_THROW(static_cast<void>(positions(Layout::contiguous, 0, 0, 10)), Error);
    EXPECT_THROW(static_cast<void>(positions(Layout::contiguous, 0, 1, -1)), Error);
}

TEST(Layout, RunsOfPackedSequences)
{
    const std::vector<std::int32_t> starts{0, 3, 3, 10, 12};
    const std::vector<mpi::Run> runs = runs_of({{1, 4}, {11, 1}}, starts, 12);
    ASSERT_EQ(runs.size(), 3U);
    const auto expect = [&](std::size_t i, std::int64_t sequence, std::int64_t row, Stretch at, std::int64_t whole) {
        EXPECT_EQ(runs[i].sequence, sequence);
        EXPECT_EQ(runs[i].row, row);
        EXPECT_EQ(runs[i].at, at);
        EXPECT_EQ(runs[i].whole, whole);
    };
    expect(0, 0, 0, {1, 2}, 3);
    expect(1, 2, 2, {0, 2}, 7);
    expect(2, 3, 4, {1, 1}, 2);
}

/// sees() against every pair of rows.
TEST(Layout, SeesWhatMasksLeave)
{
    std::mt19937 random(3);
    const auto draw = [&](int least, int most) {
        return std::uniform_int_distribution<std::int64_t>(least, most)(random);
    };
    int seen = 0;
    for (int round = 0; round < 20000; ++round) {
        const mpi::Run q{0, 0, {draw(0, 9), draw(0, 4)}, draw(13, 20)}, k{0, 0, {draw(0, 9), draw(0, 4)}, draw(13, 20)};
        Options options;
        options.causal = static_cast<Causal>(draw(0, 2));
        options.window = {draw(-1, 6), draw(-1, 6)};
        const std::int64_t delta = k.whole - q.whole;
        bool any = false;
        for (std::int64_t i = q.at.first; i < q.at.first + q.at.count; ++i) {
            for (std::int64_t j = k.at.first; j < k.at.first + k.at.count; ++j) {
                any = any ||
                      ((options.causal == Causal::none || j <= i + (options.causal == Causal::top_left ? 0 : delta)) &&
                       (options.window.left < 0 || j >= i + delta - options.window.left) &&
                       (options.window.right < 0 || j <= i + delta + options.window.right));
            }
        }
        ASSERT_EQ(sees(options, q, k), any) << round;
        seen += any ? 1 : 0;
    }
    EXPECT_GT(seen, 2000);
    EXPECT_LT(seen, 18000);
}

TEST(Route, BlocksGoNoFurtherThanTheyAreNeeded)
{
    const Route causal(4, [](int rank, int block) { return block <= rank; });
    for (int block = 0; block < 4; ++block) {
        EXPECT_EQ(causal.last_step(block), 3 - block);
    }
    const Route near(8, [](int rank, int block) { return block == rank - 1; });
    const Route ahead(8, [](int rank, int block) { return block == rank + 1; }); // the other way round
    for (int block = 0; block < 8; ++block) {
        EXPECT_EQ(near.last_step(block), block < 7 ? 1 : 0);
        EXPECT_EQ(ahead.last_step(block), block > 0 ? 1 : 0);
    }
    EXPECT_EQ(near.block_of(3, 1), 2);
    EXPECT_EQ(ahead.block_of(3, 1), 4);
}

TEST(Heads, RunsHaveEqualGroups)
{
    for (const auto& [heads_q, heads_kv] : {std::pair{8, 2}, std::pair{8, 8}, std::pair{12, 3}, std::pair{7, 1}}) {
        for (int members = 1; members <= heads_q; ++members) {
            std::int64_t next = 0;
            for (int member = 0; member < members; ++member) {
                const HeadRange queries = query_heads(member, members, heads_q);
                const HeadRange keys = key_heads(queries, heads_q, heads_kv);
                EXPECT_EQ(queries.first, next);
                EXPECT_GT(queries.count, 0);
                next += queries.count;
                std::int64_t in_runs = 0;
                for (const HeadRun& run : head_runs(queries, heads_q, heads_kv)) {
                    EXPECT_EQ(run.q.first, in_runs);
                    in_runs += run.q.count;
                    EXPECT_EQ(run.q.count % run.k.count, 0);
                    for (std::int64_t h = 0; h < run.q.count; ++h) {
                        const std::int64_t of_call = run.k.first + h / (run.q.count / run.k.count);
                        const std::int64_t group = heads_q / heads_kv;
                        EXPECT_EQ(keys.first + of_call, (queries.first + run.q.first + h) / group);
                    }
                }
                EXPECT_EQ(in_runs, queries.count);
            }
            EXPECT_EQ(next, heads_q);
        }
    }
}

} // namespace
} // namespace flashomp::mpi
