// Calls that ranks share: bytes, times and memory that closed forms must give too.
#include "shared_call.hpp"
#include "work.hpp"

#include "refusal.hpp"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace flashomp::cost {
namespace {

constexpr double infinite = std::numeric_limits<double>::infinity();
constexpr double a_pair = 512; // FLOPs

/// Main memory takes no time, so that a call's time is in proportion to its pairs.
Cluster cluster(double bandwidth, double latency = 0)
{
    return {1e12, infinite, {bandwidth, latency}};
}

SharedCall shared(const std::string& name, const Scheme& scheme, const Cluster& on, bool backward = false)
{
    return share(parse_shape(name), DType::bfloat16, backward, a_pair, scheme, on);
}

Scheme ring(Layout layout, std::int64_t ranks)
{
    return {Exchanging::ring, layout, ranks, 1};
}
Scheme gather(std::int64_t ranks)
{
    return {Exchanging::gather, Layout::contiguous, ranks, 1};
}
Scheme ulysses(std::int64_t ranks)
{
    return {Exchanging::ring, Layout::contiguous, ranks, ranks};
}

double sent_by_all(const SharedCall& call)
{
    double sum = 0;
    for (const RankTimes& rank : call.schedule.ranks) {
        sum += rank.sent;
    }
    return sum;
}

TEST(Schemes, OneRankSendsNothing)
{
    for (const char* const name : {"b2_h4_n1000_d64_causal", "b3_h4kv2_n77x50_d64v32_window9_varlen"}) {
        const std::vector<Scheme> all = schemes(parse_shape(name), 1);
        ASSERT_EQ(all.size(), 1U);
        for (const bool backward : {false, true}) {
            const SharedCall call = shared(name, all.front(), cluster(1e9, 1e-5), backward);
            EXPECT_EQ(sent_by_all(call), 0);
            EXPECT_EQ(call.hop_bytes, 0);
            EXPECT_DOUBLE_EQ(call.schedule.seconds, counted_pairs(parse_shape(name)) * 4 * a_pair / 1e12);
            EXPECT_DOUBLE_EQ(call.share_of_ideal(), 1);
            EXPECT_EQ(call.memory.buffers + call.memory.partials, 0);
        }
    }
}

TEST(Schemes, AFullRingTakesTheSlowerOfComputingAndSendingAtEachHop)
{
    constexpr double computing = 128.0 * 128 * 8 * a_pair / 1e12; // of a hop
    constexpr double block = 128 * 4 * (64 + 64) * 2;
    constexpr double latency = 3e-6;
    for (const double bandwidth : {1e6, 1e9, 1e12}) {
        for (const Layout layout : {Layout::contiguous, Layout::zigzag}) {
            const SharedCall call = shared("b1_h8kv4_n1024_d64", ring(layout, 8), cluster(bandwidth, latency));
            const double sending = latency + block / bandwidth;
            EXPECT_NEAR(call.schedule.seconds / (7 * std::max(computing, sending) + computing), 1, 1e-12);
            ASSERT_EQ(call.schedule.phases.size(), 8U);
            for (const RankTimes& rank : call.schedule.ranks) {
                EXPECT_EQ(rank.sent, 7 * block);
                EXPECT_EQ(rank.received, 7 * block);
                EXPECT_NEAR(rank.computing / (8 * computing), 1, 1e-12);
                EXPECT_NEAR(rank.sending / (7 * sending), 1, 1e-12);
                EXPECT_NEAR(rank.waiting, 7 * std::max(0.0, sending - computing), 1e-12);
                EXPECT_NEAR(rank.idle, 0, 1e-12);
            }
        }
    }
}

TEST(Schemes, BackwardOfAFullRingSendsGradientsOneHopBehindAndHome)
{
    constexpr double computing = 128.0 * 128 * 8 * a_pair / 1e12;
    constexpr double keys = 128 * 4 * 128 * 2, gradients = 128 * 4 * 128 * 4;
    constexpr double bandwidth = 1e7; // the links are what takes time
    const SharedCall call = shared("b1_h8kv4_n1024_d64", ring(Layout::contiguous, 8), cluster(bandwidth), true);
    for (const RankTimes& rank : call.schedule.ranks) {
        EXPECT_EQ(rank.sent, 7 * keys + 8 * gradients); // seven stops, and home
        EXPECT_EQ(rank.received, rank.sent);
    }
    // Hop 0: keys; 1 to 6: both; 7: gradients beside the last call; then home.
    EXPECT_NEAR(call.schedule.seconds, (7 * keys + 8 * gradients) / bandwidth, 1e-9);
    EXPECT_GT(gradients / bandwidth, computing);
    EXPECT_EQ(call.schedule.phases.size(), 9U);
    EXPECT_EQ(call.schedule.phases.back().name, "home");
    EXPECT_EQ(call.hop_bytes, keys + gradients);
}

TEST(Schemes, ZigzagIsEvenUnderACausalMaskAndContiguousIsNot)
{
    constexpr double ranks = 16, rows = 64;
    const std::string name = "b1_h2_n1024_d64_causal";
    for (const bool backward : {false, true}) {
        const SharedCall even = shared(name, ring(Layout::zigzag, 16), cluster(infinite), backward);
        EXPECT_NEAR(even.imbalance(), 1, 1e-12);
        EXPECT_NEAR(even.share_of_ideal(), 1, 1e-12);
        const SharedCall odd = shared(name, ring(Layout::contiguous, 16), cluster(infinite), backward);
        const RankTimes& first = odd.schedule.ranks.front();
        const RankTimes& last = odd.schedule.ranks.back();
        EXPECT_NEAR(last.computing / odd.alone, (2 * ranks - 1) / (ranks * ranks), 1 / (ranks * rows));
        EXPECT_NEAR(odd.imbalance(), 2 - 1 / ranks, 1 / rows);
        EXPECT_NEAR(odd.schedule.seconds / last.computing, 1, 1e-12); // the last rank is never kept waiting
        const double pair = 2 * a_pair / 1e12;
        EXPECT_NEAR(first.computing / (rows * (rows + 1) / 2 * pair), 1, 1e-12);
        EXPECT_NEAR((first.waiting + first.idle) / (last.computing - first.computing), 1, 1e-12);
    }
}

TEST(Schemes, ARingOfTwoUnderACausalMaskIsPlayedAsByHand)
{
    constexpr double rows = 100, heads = 3, pair = heads * a_pair / 1e12;
    constexpr double own = rows * (rows + 1) / 2 * pair, other = rows * rows * pair;
    constexpr double block = rows * heads * 128 * 2;
    constexpr double latency = 1e-6;
    for (const double bandwidth : {1e8, 5e9, 1e10, 1e12}) {
        const Scheme two = ring(Layout::contiguous, 2);
        const double keys = latency + block / bandwidth, gradients = latency + 2 * block / bandwidth;
        const SharedCall forward = shared("b1_h3_n200_d64_causal", two, cluster(bandwidth, latency));
        EXPECT_NEAR(forward.schedule.seconds / (std::max(own, keys) + other), 1, 1e-12);
        const SharedCall backward = shared("b1_h3_n200_d64_causal", two, cluster(bandwidth, latency), true);
        const double both = std::max(own, keys) + std::max(other, gradients);
        EXPECT_NEAR(backward.schedule.seconds / (both + gradients), 1, 1e-12);
        EXPECT_EQ(backward.schedule.ranks[1].sent, 2 * block); // home
        EXPECT_NEAR(backward.schedule.ranks[0].computing / own, 1, 1e-12);
    }
}

TEST(Schemes, HiddenBlocksAreNeitherSentNorComputed)
{
    constexpr double block = 64 * 2 * 128 * 2; // of 16 ranks
    const auto sent = [&](const std::string& name, Layout layout) {
        return sent_by_all(shared(name, ring(layout, 16), cluster(1e9))) / block;
    };
    EXPECT_EQ(sent("b1_h2_n1024_d64", Layout::contiguous), 16 * 15);
    EXPECT_EQ(sent("b1_h2_n1024_d64_causal", Layout::contiguous), 16 * 15 / 2);
    EXPECT_EQ(sent("b1_h2_n1024_d64_causal", Layout::zigzag), 16 * 15);
    // 64 rows a rank: the first of a shard sees its own shard alone, the one before it, and two of them.
    EXPECT_EQ(sent("b1_h2_n1024_d64_causal_window0", Layout::contiguous), 0);
    EXPECT_EQ(sent("b1_h2_n1024_d64_causal_window64", Layout::contiguous), 15);
    EXPECT_EQ(sent("b1_h2_n1024_d64_causal_window65", Layout::contiguous), 15 + 14);
    const SharedCall call = shared("b1_h2_n1024_d64_causal_window64", ring(Layout::contiguous, 16), cluster(1e9));
    EXPECT_EQ(call.schedule.phases.size(), 2U);
    const SharedCall backward =
        shared("b1_h2_n1024_d64_causal_window64", ring(Layout::contiguous, 16), cluster(1e9), true);
    EXPECT_EQ(backward.schedule.phases.size(), 3U);
    EXPECT_EQ(sent_by_all(backward) / block, 15 + 2 * 15 * 2); // dK and dV are twice as wide: there, and home
}

TEST(Schemes, EverythingSentIsReceivedAndTimesAddUp)
{
    std::mt19937 random(4);
    const auto up_to = [&](int from, int to) { return std::uniform_int_distribution<int>(from, to)(random); };
    for (int round = 0; round < 60; ++round) {
        Shape shape;
        shape.batch = up_to(1, 3);
        shape.packed = up_to(0, 2) == 0;
        shape.heads_kv = up_to(1, 4);
        shape.heads_q = shape.heads_kv * up_to(1, 4);
        shape.seqlen_q = up_to(1, 60);
        shape.seqlen_k = up_to(1, 60);
        shape.causal = static_cast<Causal>(up_to(0, 2));
        shape.window = {up_to(-1, 20), up_to(-1, 20)};
        const int ranks = up_to(1, 16);
        const bool backward = up_to(0, 1) == 1;
        for (const Scheme& scheme : schemes(shape, ranks)) {
            SCOPED_TRACE(shape.name() + ", " + scheme.name());
            const Cluster on{1e9, 1e8, {1e8, 1e-6}};
            const SharedCall call = share(shape, DType::float32, backward, a_pair, scheme, on);
            double sent = 0, received = 0;
            for (const RankTimes& rank : call.schedule.ranks) {
                sent += rank.sent;
                received += rank.received;
                EXPECT_GE(rank.waiting, -1e-15);
                EXPECT_GE(rank.idle, 0);
                EXPECT_LE(rank.sending, call.schedule.seconds * (1 + 1e-12));
                EXPECT_NEAR(rank.computing + rank.waiting + rank.idle, call.schedule.seconds,
                            1e-12 * call.schedule.seconds);
            }
            EXPECT_EQ(sent, received);
            EXPECT_GE(call.imbalance(), 1 - 1e-12);
            // Pairs of all ranks are those of one call.
            const SharedCall fast = share(shape, DType::float32, backward, a_pair, scheme, cluster(1e9));
            double computing = 0;
            for (const RankTimes& rank : fast.schedule.ranks) {
                computing += rank.computing;
            }
            EXPECT_NEAR(computing, fast.alone, 1e-12 * fast.alone);
            EXPECT_LE(fast.share_of_ideal(), 1 + 1e-12);
        }
    }
}

TEST(Schemes, UlyssesExchangesHeadsForRows)
{
    constexpr double rows = 128, heads = 2, e = 2, d = 64, dv = 32;
    const SharedCall call = shared("b1_h8kv4_n512_d64v32_causal", ulysses(4), cluster(infinite));
    for (const RankTimes& rank : call.schedule.ranks) {
        const double queries = rows * 3 * heads * d * e;
        const double keys = rows * 3 * (heads / 2) * (d + dv) * e;
        const double results = 3 * rows * heads * (dv * e + 4);
        EXPECT_EQ(rank.sent, queries + keys + results);
        EXPECT_EQ(rank.received, rank.sent);
    }
    EXPECT_NEAR(call.share_of_ideal(), 1, 1e-12);
    EXPECT_FALSE(call.hiding_rows);
    // The one key head goes to all; its gradients come back from all in float32.
    const SharedCall one_head = shared("b1_h8kv1_n512_d64v32", ulysses(4), cluster(infinite), true);
    for (const RankTimes& rank : one_head.schedule.ranks) {
        const double queries = rows * 3 * heads * (d * e + 2 * dv * e + 4);
        const double keys = rows * 3 * (d + dv) * e;
        const double results = 3 * rows * heads * d * e + 3 * rows * (d + dv) * 4;
        EXPECT_EQ(rank.sent, queries + keys + results);
    }
    // Half of 16 ranks have no head of 8.
    EXPECT_NEAR(shared("b1_h8_n512_d64", ulysses(16), cluster(infinite)).share_of_ideal(), 0.5, 1e-12);
}

TEST(Schemes, GroupsOfARingHaveTheHeadsAndRowsOfBoth)
{
    const Scheme grid{Exchanging::ring, Layout::zigzag, 8, 2};
    EXPECT_EQ(grid.name(), "Ulysses 2 x ring 4, zigzag");
    const SharedCall call = shared("b1_h8kv4_n1024_d64_causal", grid, cluster(infinite));
    EXPECT_NEAR(call.imbalance(), 1, 1e-12);
    for (const RankTimes& rank : call.schedule.ranks) {
        const double exchanged = 128 * 4 * 64 * 2 + 128 * 2 * 128 * 2 + 128 * 4 * (64 * 2 + 4);
        const double hops = 3 * 256 * 2 * 128 * 2;
        EXPECT_EQ(rank.sent, exchanged + hops);
    }
    EXPECT_EQ(call.hop_bytes, 256 * 2 * 128 * 2);
    EXPECT_EQ(call.schedule.phases.size(), 6U);

    const auto group_of = [](const char* name, std::int64_t ranks) {
        std::int64_t group = 0;
        for (const Scheme& scheme : schemes(parse_shape(name), ranks)) {
            group = scheme.heads_ranks > 1 && !scheme.is_ulysses() ? scheme.heads_ranks : group;
        }
        return group;
    };
    EXPECT_EQ(group_of("b1_h32kv8_n8_d64", 64), 8);
    EXPECT_EQ(group_of("b1_h32kv8_n8_d64", 12), 4);
    EXPECT_EQ(group_of("b1_h32kv1_n8_d64", 12), 2);
    EXPECT_EQ(group_of("b1_h32kv8_n8_d64", 7), 0);
    EXPECT_EQ(group_of("b1_h2_n8_d64", 49), 0); // 7 ranks for 2 heads
}

TEST(Schemes, AGatherSendsEachBlockToAllThatSeeItAtOnce)
{
    constexpr double rows = 128, heads = 8, block = rows * 4 * 128 * 2, sums = 2 * block;
    constexpr double whole = rows * rows * heads * a_pair / 1e12, half = whole * (rows + 1) / (2 * rows);
    for (const double bandwidth : {1e7, 1e12}) { // links, or computing
        const double keys = 1e-6 + block / bandwidth, gradients = 1e-6 + sums / bandwidth;
        const SharedCall full = shared("b1_h8kv4_n512_d64", gather(4), cluster(bandwidth, 1e-6));
        EXPECT_NEAR(full.schedule.seconds / std::max(4 * whole, std::max(whole, 3 * keys) + whole), 1, 1e-12);
        EXPECT_EQ(full.hop_bytes, block);
        const SharedCall forward = shared("b1_h8kv4_n512_d64_causal", gather(4), cluster(bandwidth, 1e-6));
        const SharedCall backward = shared("b1_h8kv4_n512_d64_causal", gather(4), cluster(bandwidth, 1e-6), true);
        for (std::size_t rank = 0; rank < 4; ++rank) { // those behind a block see it
            const auto to = static_cast<double>(3 - rank), from = static_cast<double>(rank);
            EXPECT_EQ(forward.schedule.ranks[rank].sent, to * block);
            EXPECT_EQ(forward.schedule.ranks[rank].received, from * block);
            EXPECT_EQ(backward.schedule.ranks[rank].sent, to * block + from * sums);
            EXPECT_EQ(backward.schedule.ranks[rank].received, from * block + to * sums);
        }
        // The last rank's blocks arrive one after the other.
        EXPECT_NEAR(forward.schedule.ranks[3].end, std::max(half + 3 * whole, std::max(half, 3 * keys) + whole), 1e-12);
        EXPECT_GT(backward.schedule.seconds, half + 3 * whole + gradients - 1e-12);
        EXPECT_EQ(forward.memory.buffers, 3 * block);
        EXPECT_EQ(backward.memory.buffers, 3 * block + 4 * sums);
        EXPECT_EQ(forward.memory.partials, 2 * rows * heads * (64 * 4 + 4));
    }
}

TEST(Schemes, BlocksGoTheWayRoundThatHasFewerHops)
{
    constexpr double block = 64 * 2 * 128 * 2; // of 16 ranks
    const auto sent = [&](const std::string& name, bool backward = false) {
        return sent_by_all(shared(name, ring(Layout::contiguous, 16), cluster(1e9), backward)) / block;
    };
    // Without a causal mask a window to the right sees blocks behind its own, which come the other way.
    EXPECT_EQ(sent("b1_h2_n1024_d64_window0x64"), 15);
    EXPECT_EQ(sent("b1_h2_n1024_d64_window64x0"), 15);
    EXPECT_EQ(sent("b1_h2_n1024_d64_window0x64", true), 15 + 15 * 2 * 2);
    const Travel both = travel(5, [](std::int64_t place, std::int64_t of) { return place + 1 == of; });
    EXPECT_EQ(both.direction, -1);
    EXPECT_EQ(both.stops, (std::vector<std::int64_t>{0, 1, 1, 1, 1}));
    EXPECT_EQ(travel(5, [](std::int64_t, std::int64_t) { return true; }).direction, 1);
}

TEST(Schemes, MemoryOfARing)
{
    constexpr double rows = 128;
    const SharedCall forward = shared("b1_h8kv4_n1024_d64", ring(Layout::zigzag, 8), cluster(1e9));
    EXPECT_EQ(forward.memory.shards, rows * (8 * (64 * 2 + 64 * 2 + 4) + 4 * 128 * 2));
    EXPECT_EQ(forward.memory.buffers, 2 * rows * 4 * 128 * 2);
    EXPECT_EQ(forward.memory.partials, 2 * rows * 8 * (64 * 4 + 4));
    const SharedCall backward = shared("b1_h8kv4_n1024_d64", ring(Layout::zigzag, 8), cluster(1e9), true);
    EXPECT_EQ(backward.memory.shards, rows * (8 * (4 * 64 * 2 + 4) + 2 * 4 * 128 * 2));
    EXPECT_EQ(backward.memory.buffers, rows * 4 * 128 * (2 * 2 + 3 * 4));
    EXPECT_EQ(backward.memory.partials, 2 * rows * 8 * 64 * 4);
}

TEST(Schemes, FewerRowsThanRanksIsAllowed)
{
    for (const Scheme& scheme : schemes(parse_shape("b1_h4_n3_d64_causal"), 8)) {
        for (const bool backward : {false, true}) {
            const SharedCall call = shared("b1_h4_n3_d64_causal", scheme, cluster(1e9, 1e-6), backward);
            double computing = 0;
            for (const RankTimes& rank : call.schedule.ranks) {
                computing += rank.computing;
            }
            EXPECT_NEAR(computing / (6 * 4 * a_pair / 1e12), 1, 1e-12) << scheme.name();
            EXPECT_TRUE(std::isfinite(call.schedule.seconds)) << scheme.name();
        }
    }
}

TEST(Schemes, ARingHidesItsMessagesFromALength)
{
    // A hop has rows^2·heads pairs, its message rows·bytes: the ring of R ranks takes (R - 1)·max + computing, and may
    // take a hundredth more than R·computing.
    constexpr double ranks = 8, heads = 32, bytes = 8 * 256 * 2, bandwidth = 1e9;
    const SharedCall full = shared("b1_h32kv8_n4096_d128", ring(Layout::contiguous, 8), cluster(bandwidth));
    const double rows = bytes / bandwidth / (heads * a_pair / 1e12) / (1 + 0.01 * ranks / (ranks - 1));
    ASSERT_TRUE(full.hiding_rows);
    EXPECT_EQ(static_cast<double>(*full.hiding_rows), ranks * std::ceil(rows));
    // The length shown is one at which links that take no time gain nothing, and shorter ones are not.
    const auto gain = [&](std::int64_t rows_in_all, Layout layout) {
        const std::string name = fmt::format("b1_h32kv8_n{}_d128_causal", rows_in_all);
        return shared(name, ring(layout, 8), cluster(bandwidth)).schedule.seconds /
               shared(name, ring(layout, 8), cluster(infinite)).schedule.seconds;
    };
    for (const Layout layout : {Layout::contiguous, Layout::zigzag}) {
        const SharedCall causal = shared("b1_h32kv8_n64_d128_causal", ring(layout, 8), cluster(bandwidth));
        ASSERT_TRUE(causal.hiding_rows);
        EXPECT_LE(gain(*causal.hiding_rows, layout), 1.01);
        EXPECT_GT(gain(*causal.hiding_rows - 8, layout), 1.01);
    }
    // A window leaves so few pairs that a slow link is never hidden.
    EXPECT_FALSE(shared("b1_h32kv8_n4096_d128_causal_window16", ring(Layout::contiguous, 8), cluster(1e6)).hiding_rows);
}

TEST(Schemes, WhatCannotBeSharedIsRefused)
{
    const Shape plain = parse_shape("b1_h4_n64_d64");
    testing::expect_refused("ranks was 0; allowed are 1 to 4096.", [&] { require_shareable(plain, 0); });
    testing::expect_refused("ranks was 4097; allowed are 1 to 4096.", [&] { require_shareable(plain, 4097); });
    for (const char* const name :
         {"b1_h1_n256_d64_blocks50", "b1_h4kv1_n64_d96v64_latent", "b1_h1_n64_d64_page16", "b1_h1_n64_d64_int8"}) {
        testing::expect_refused(std::string("shape was '") + name + "'; with ranks, allowed are shapes without _blocks",
                                [&] { require_shareable(parse_shape(name), 2); });
    }
}

} // namespace
} // namespace flashomp::cost
