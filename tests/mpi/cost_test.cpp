// The cost model, and what it chooses beside the fastest of the schemes that were measured.
#include "cost.hpp"
#include "layout.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <gtest/gtest.h>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <tuple>

namespace flashomp::mpi {
namespace {

CostShape long_shape(int ranks)
{
    CostShape shape;
    shape.ranks = ranks;
    shape.heads_q = 32;
    shape.heads_kv = 32;
    shape.length_q = shape.length_k = 1 << 17;
    shape.head_dim = shape.head_dim_v = 128;
    shape.pairs_of_all = shape.length_q * shape.length_k;
    shape.pairs_of_busiest = shape.pairs_of_all / ranks;
    shape.blocks_of_busiest = ranks - 1;
    return shape;
}

TEST(Cost, LongSequencesHideTheirTraffic)
{
    CostShape shape = long_shape(8);
    shape.heads_q = shape.heads_kv = 1; // nothing to share out
    const Choice choice = cheapest(shape);
    EXPECT_EQ(choice.scheme, Scheme::ring) << choice.why;
    const Cost cost = cost_of(shape, Scheme::ring, 1);
    EXPECT_GT(cost.seconds_computing, cost.seconds_sending);
    EXPECT_EQ(cost.seconds, cost.seconds_computing);
    EXPECT_EQ(cost_of(shape, Scheme::all_gather, 1).seconds, cost.seconds); // nothing is left to be saved
    const Choice of_many_heads = cheapest(long_shape(8));
    EXPECT_NE(of_many_heads.why.find("too much memory"), std::string::npos) << of_many_heads.why;
}

TEST(Cost, PartsCostMoreThanTheirPairs)
{
    const Choice choice = cheapest(long_shape(8)); // rows whole, and an exchange that is short beside them
    EXPECT_EQ(choice.scheme, Scheme::ulysses) << choice.why;
    Speeds no_parts;
    no_parts.keys_of_part = 0;
    EXPECT_EQ(cheapest(long_shape(8), no_parts).scheme, Scheme::ring);
    EXPECT_GT(cost_of(long_shape(8), Scheme::ring, 1).seconds,
              cost_of(long_shape(8), Scheme::ring, 1, no_parts).seconds);
}

TEST(Cost, HeadsThatRanksCannotShareOutEvenlyCostTheirMost)
{
    CostShape shape = long_shape(4);
    shape.heads_q = shape.heads_kv = 9; // 3, 2, 2 and 2 of them
    const double fair = cost_of(shape, Scheme::ring, 1, {.keys_of_part = 0}).seconds_computing;
    EXPECT_NEAR(cost_of(shape, Scheme::ulysses, 1, {.keys_of_part = 0}).seconds_computing, fair * 3.0 / 2.25,
                fair * 1e-9);
    EXPECT_EQ(cheapest(shape).scheme, Scheme::ring);
}

TEST(Cost, SlowWiresShareOutHeads)
{
    // Where sending is all that counts, heads move q, k, v and o once, a ring K and V ranks - 1 times.
    Speeds slow;
    slow.bytes = 1e6;
    const Choice choice = cheapest(long_shape(16), slow);
    EXPECT_EQ(choice.scheme, Scheme::ulysses) << choice.why;
    CostShape one_head = long_shape(16);
    one_head.heads_q = one_head.heads_kv = 1;
    EXPECT_EQ(cheapest(one_head, slow).heads_ranks, 1);
}

TEST(Cost, ShortSequencesAreGathered)
{
    CostShape shape = long_shape(8); // whose messages' latencies a ring has one after the other
    shape.heads_q = shape.heads_kv = 1;
    shape.length_q = shape.length_k = 64;
    shape.pairs_of_all = 64.0 * 64.0;
    shape.pairs_of_busiest = shape.pairs_of_all / 8;
    EXPECT_EQ(cheapest(shape).scheme, Scheme::all_gather);
}

/// A call on all ranks, as bench/ring.py measures calls.
struct Measured {
    std::string dtype, direction, shape;
    int ranks;
    Layout layout;
    friend auto operator<=>(const Measured&, const Measured&) = default;
};

using Schemes = std::map<std::pair<Scheme, int>, double>; // with heads_ranks, and milliseconds

Scheme scheme_of(const std::string& name)
{
    for (const Scheme scheme : {Scheme::ring, Scheme::all_gather, Scheme::ulysses, Scheme::grid}) {
        if (name == name_of(scheme)) {
            return scheme;
        }
    }
    throw Error("a set of results names the scheme " + name);
}

std::map<Measured, Schemes> measured(const std::string& file)
{
    std::ifstream in(FLASHOMP_RESULTS "/" + file);
    const nlohmann::json set = nlohmann::json::parse(in);
    std::map<Measured, Schemes> found;
    for (const auto& row : set.at("benchmarks")) {
        if (row.at("implementation") != "flashomp-mpi" || row.at("ranks") == 1) {
            continue;
        }
        const Scheme scheme = scheme_of(row.at("scheme"));
        const int members = scheme == Scheme::ulysses ? row.at("ranks").get<int>() : row.at("heads_ranks").get<int>();
        Measured call{row.at("dtype"), row.at("direction"), row.at("shape"), row.at("ranks"), Layout::contiguous};
        const bool is_zigzag = row.at("layout") == "zigzag";
        for (const Layout layout : {Layout::contiguous, Layout::zigzag}) {
            // All rows of some heads are the same work in either layout, and measured in one.
            if (scheme == Scheme::ulysses || is_zigzag == (layout == Layout::zigzag)) {
                call.layout = layout;
                found[call][{scheme, members}] = row.at("real_time");
            }
        }
    }
    return found;
}

CostShape cost_shape(const Measured& call)
{
    int batch = 0, heads = 0, length = 0, depth = 0;
    EXPECT_EQ(std::sscanf(call.shape.c_str(), "b%d_h%d_n%d_d%d", &batch, &heads, &length, &depth), 4) << call.shape;
    const bool is_causal = call.shape.find("causal") != std::string::npos;
    CostShape shape;
    shape.ranks = call.ranks;
    shape.batch = batch;
    shape.heads_q = shape.heads_kv = heads;
    shape.length_q = shape.length_k = length;
    shape.head_dim = shape.head_dim_v = depth;
    shape.element_bytes = call.dtype == "float32" ? 4 : 2;
    shape.is_backward = call.direction == "backward";
    shape.pairs_of_all = shape.pairs_of_busiest = 0;
    shape.blocks_of_busiest = call.ranks - 1;
    for (int rank = 0; rank < call.ranks; ++rank) {
        const Positions of_rank = positions(call.layout, rank, call.ranks, length);
        double pairs = 0;
        for (std::int64_t row = 0; row < of_rank.rows(); ++row) {
            pairs += is_causal ? static_cast<double>(of_rank[row] + 1) : length;
        }
        shape.pairs_of_all += pairs;
        shape.pairs_of_busiest = std::max(shape.pairs_of_busiest, pairs);
    }
    return shape;
}

/// What was measured of the cheapest scheme, as a multiple of the fastest one: the geometric mean, and the most.
std::pair<double, double> behind_the_fastest(const std::string& file, const Speeds& speeds = {})
{
    double logarithms = 0.0, most = 1.0;
    const std::map<Measured, Schemes> calls = measured(file);
    EXPECT_GE(calls.size(), 32U);
    for (const auto& [call, schemes] : calls) {
        const Choice choice = cheapest(cost_shape(call), speeds);
        const auto chosen = schemes.find({choice.scheme, choice.heads_ranks});
        if (chosen == schemes.end()) {
            ADD_FAILURE() << call.shape << " on " << call.ranks << " ranks: " << choice.why << " was not measured";
            continue;
        }
        double fastest = chosen->second;
        for (const auto& [scheme, milliseconds] : schemes) {
            fastest = std::min(fastest, milliseconds);
        }
        const double ratio = chosen->second / fastest;
        logarithms += std::log(ratio);
        most = std::max(most, ratio);
    }
    return {std::exp(logarithms / static_cast<double>(calls.size())), most};
}

/// The first set is the one that keys_of_part comes from, the second one of another machine.
TEST(Cost, ChoosesWhatIsNearTheFastestMeasured)
{
    for (const char* const file : {"h100-host-ring.json", "host-ring.json"}) {
        const auto [mean, most] = behind_the_fastest(file);
        const auto [mean_before, most_before] = behind_the_fastest(file, {.keys_of_part = 0});
        RecordProperty(std::string(file) + " mean", std::to_string(mean));
        RecordProperty(std::string(file) + " most", std::to_string(most));
        std::printf("%s: %.3f of the fastest, at most %.3f; without a cost of parts %.3f and %.3f\n", file, mean, most,
                    mean_before, most_before);
        EXPECT_LT(mean, 1.05) << file;
        EXPECT_LT(most, 1.3) << file;
        EXPECT_GT(mean_before, 1.1) << file << ": then parts need no cost";
    }
}

} // namespace
} // namespace flashomp::mpi
