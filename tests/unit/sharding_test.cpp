// Shards of a sequence, and the pairs of two of them: counts in closed form against counts one by one.
#include "sharding.hpp"
#include "work.hpp"

#include <algorithm>
#include <fmt/format.h>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace flashomp::cost {
namespace {

constexpr std::array layouts{Layout::contiguous, Layout::zigzag};

/// The rank of each row.
std::vector<std::int64_t> owners(Layout layout, std::int64_t ranks, std::int64_t length)
{
    std::vector<std::int64_t> all(static_cast<std::size_t>(length), -1);
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
        for (const Stretch& stretch : shard(layout, rank, ranks, length)) {
            for (std::int64_t row = stretch.first; row < stretch.first + stretch.count; ++row) {
                EXPECT_EQ(all.at(static_cast<std::size_t>(row)), -1) << "row " << row << " has two ranks";
                all.at(static_cast<std::size_t>(row)) = rank;
            }
        }
    }
    return all;
}

/// The semantics of masks, as options.hpp says them.
bool keeps(const Shape& shape, std::int64_t length_q, std::int64_t length_k, std::int64_t i, std::int64_t j)
{
    const std::int64_t delta = length_k - length_q;
    return (shape.causal != Causal::top_left || j <= i) && (shape.causal != Causal::bottom_right || j <= i + delta) &&
           (shape.window.left < 0 || j >= i + delta - shape.window.left) &&
           (shape.window.right < 0 || j <= i + delta + shape.window.right);
}

/// Pairs of each rank and block, one by one.
std::vector<std::vector<std::int64_t>> counted(const Shape& shape, Layout layout, std::int64_t ranks)
{
    const std::vector<std::int64_t> lengths_q = shape.packed ? shape.lengths_q() : std::vector{shape.seqlen_q};
    const std::vector<std::int64_t> lengths_k = shape.packed ? shape.lengths_k() : std::vector{shape.seqlen_k};
    const auto sum = [](const std::vector<std::int64_t>& lengths) {
        std::int64_t all = 0;
        for (const std::int64_t length : lengths) {
            all += length;
        }
        return all;
    };
    const std::vector<std::int64_t> owners_q = owners(layout, ranks, sum(lengths_q));
    const std::vector<std::int64_t> owners_k = owners(layout, ranks, sum(lengths_k));
    std::vector<std::vector<std::int64_t>> pairs(static_cast<std::size_t>(ranks),
                                                 std::vector<std::int64_t>(static_cast<std::size_t>(ranks)));
    std::int64_t first_q = 0, first_k = 0;
    for (std::size_t s = 0; s < lengths_q.size(); ++s) {
        for (std::int64_t i = 0; i < lengths_q[s]; ++i) {
            for (std::int64_t j = 0; j < lengths_k[s]; ++j) {
                const auto rank = static_cast<std::size_t>(owners_q.at(static_cast<std::size_t>(first_q + i)));
                const auto block = static_cast<std::size_t>(owners_k.at(static_cast<std::size_t>(first_k + j)));
                pairs.at(rank).at(block) += keeps(shape, lengths_q[s], lengths_k[s], i, j) ? 1 : 0;
            }
        }
        first_q += lengths_q[s];
        first_k += lengths_k[s];
    }
    return pairs;
}

Shape random_shape(std::mt19937& random, std::int64_t longest)
{
    const auto up_to = [&](std::int64_t from, std::int64_t to) {
        return std::uniform_int_distribution<std::int64_t>(from, to)(random);
    };
    Shape shape;
    shape.batch = up_to(1, 4);
    shape.packed = up_to(0, 2) == 0;
    shape.seqlen_q = up_to(1, longest);
    shape.seqlen_k = up_to(0, 1) == 0 ? shape.seqlen_q : up_to(1, longest);
    shape.causal = static_cast<Causal>(up_to(0, 2));
    if (up_to(0, 1) == 0) {
        shape.window = {up_to(-1, longest / 2), up_to(-1, longest / 2)};
    }
    return shape;
}

TEST(Sharding, EveryRowHasOneRank)
{
    for (const Layout layout : layouts) {
        for (const std::int64_t ranks : {1, 2, 3, 8, 17}) {
            for (const std::int64_t length : {1, 2, 7, 16, 33, 100}) {
                for (const std::int64_t owner : owners(layout, ranks, length)) {
                    EXPECT_GE(owner, 0) << ranks << " ranks, length " << length;
                }
            }
        }
    }
    EXPECT_EQ(shard(Layout::zigzag, 1, 4, 16)[0], (Stretch{2, 2}));
    EXPECT_EQ(shard(Layout::zigzag, 1, 4, 16)[1], (Stretch{12, 2}));
}

TEST(Sharding, PairsAreThoseCountedOneByOne)
{
    std::mt19937 random(20261125);
    for (int round = 0; round < 150; ++round) {
        const Shape shape = random_shape(random, 24);
        const std::int64_t ranks = std::uniform_int_distribution<std::int64_t>(1, 9)(random);
        for (const Layout layout : layouts) {
            SCOPED_TRACE(fmt::format("{} over {} ranks, {}", shape.name(), ranks,
                                     layout == Layout::zigzag ? "zigzag" : "contiguous"));
            const ShardPairs closed(shape, layout, ranks);
            const auto expected = counted(shape, layout, ranks);
            std::int64_t all = 0;
            for (std::int64_t rank = 0; rank < ranks; ++rank) {
                std::int64_t of_rank = 0;
                for (std::int64_t block = 0; block < ranks; ++block) {
                    const std::int64_t pairs = closed.pairs(rank, block);
                    ASSERT_EQ(pairs, expected.at(static_cast<std::size_t>(rank)).at(static_cast<std::size_t>(block)))
                        << "rank " << rank << ", block " << block;
                    of_rank += pairs;
                }
                EXPECT_EQ(closed.pairs(rank), of_rank);
                all += of_rank;
            }
            EXPECT_EQ(static_cast<double>(all * closed.entries()), counted_pairs(shape));
        }
    }
}

TEST(Sharding, SumsOverRanksAreTheSingleCall)
{
    std::mt19937 random(28);
    for (int round = 0; round < 20; ++round) {
        const Shape shape = random_shape(random, std::int64_t{1} << 25); // a double holds the sums
        const std::int64_t ranks = std::uniform_int_distribution<std::int64_t>(1, 100)(random);
        for (const Layout layout : layouts) {
            const ShardPairs pairs(shape, layout, ranks);
            std::int64_t sum = 0, rows_q = 0, rows_k = 0;
            for (std::int64_t rank = 0; rank < ranks; ++rank) {
                std::int64_t of_rank = 0;
                for (std::int64_t block = 0; block < ranks; ++block) {
                    of_rank += pairs.pairs(rank, block);
                }
                EXPECT_EQ(of_rank, pairs.pairs(rank)) << shape.name();
                sum += of_rank;
                rows_q += pairs.rows_q(rank);
                rows_k += pairs.rows_k(rank);
            }
            EXPECT_EQ(static_cast<double>(sum) * static_cast<double>(pairs.entries()), counted_pairs(shape))
                << shape.name() << " over " << ranks;
            EXPECT_EQ(rows_q * pairs.entries(), shape.rows_q());
            EXPECT_EQ(rows_k * pairs.entries(), shape.rows_k());
        }
    }
}

TEST(Sharding, LongestLengthsFit)
{
    const Shape shape = parse_shape("b1_h1_n1073741824_d64_causal");
    const ShardPairs pairs(shape, Layout::zigzag, 4096);
    constexpr std::int64_t chunk = (std::int64_t{1} << 30) / 8192;
    for (const std::int64_t rank : {0, 1, 2048, 4095}) {
        EXPECT_EQ(pairs.pairs(rank), 8191 * chunk * chunk + chunk * (chunk + 1));
    }
    EXPECT_EQ(pairs.pairs(7, 6), 2 * chunk * chunk);
    EXPECT_EQ(pairs.pairs(6, 7), 2 * chunk * chunk);
}

TEST(Sharding, ACausalMaskGivesTheLastOfContiguousRanksMost)
{
    constexpr std::int64_t rows = 1000; // of a rank
    for (const std::int64_t ranks : {1, 2, 5, 64}) {
        Shape shape;
        shape.seqlen_q = shape.seqlen_k = ranks * rows;
        shape.causal = Causal::bottom_right;
        const ShardPairs contiguous(shape, Layout::contiguous, ranks);
        const auto last = static_cast<double>(contiguous.pairs(ranks - 1));
        const auto r = static_cast<double>(ranks);
        // (2R - 1)/R^2 of the N^2/2 that a triangle without its diagonal's halves has.
        EXPECT_NEAR(last / counted_pairs(shape), (2 * r - 1) / (r * r), 1.0 / rows);
        const ShardPairs zigzag(shape, Layout::zigzag, ranks);
        for (std::int64_t rank = 0; rank < ranks; ++rank) {
            EXPECT_EQ(static_cast<double>(zigzag.pairs(rank) * ranks), counted_pairs(shape));
        }
    }
}

} // namespace
} // namespace flashomp::cost
