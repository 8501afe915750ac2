// The OpenMP backend against the float64 reference over random shapes, on every machine.
#include "support/parity.hpp"

namespace flashomp::testing {
namespace {

class Parity : public ParityTest {
protected:
    using ParityTest::check;

    void check(const Shape& shape, const Options& options, std::uint64_t seed)
    {
        SCOPED_TRACE(::testing::Message() << shape << " causal " << static_cast<int>(options.causal) << " window "
                                          << options.window.left << "," << options.window.right << " seed " << seed);
        AttentionCase attention(shape, dtype(), seed);
        attention.options = options;
        check(attention);
    }
};

INSTANTIATE_TEST_SUITE_P(Machines, Parity, parity_params(), parity_name);

TEST_P(Parity, OneByOne)
{
    check({1, 1, 1, 1, 1, 1, 1}, {}, 1);
}

TEST_P(Parity, FullAttention)
{
    check({2, 3, 3, 65, 130, 64, 64}, {}, 2);
}

TEST_P(Parity, CausalBothAlignments)
{
    Options options;
    for (const Causal causal : {Causal::top_left, Causal::bottom_right}) {
        options.causal = causal;
        check({1, 2, 2, 113, 203, 32, 32}, options, 3);
        check({1, 2, 2, 203, 113, 40, 40}, options, 4);
        check({1, 1, 1, 70, 70, 16, 16}, options, 5);
    }
}

TEST_P(Parity, Windows)
{
    Options options;
    for (const Window window : {Window{17, 0}, Window{10, 20}, Window{-1, 5}, Window{0, 0}, Window{3, -1}}) {
        options.window = window;
        options.causal = Causal::none;
        check({1, 2, 1, 77, 140, 24, 24}, options, 6);
        options.causal = Causal::bottom_right;
        check({1, 2, 1, 140, 77, 24, 24}, options, 7);
    }
}

TEST_P(Parity, GroupedHeads)
{
    check({2, 6, 2, 50, 60, 32, 32}, {}, 8);
    check({1, 8, 1, 33, 31, 64, 64}, {}, 9);
}

TEST_P(Parity, HeadDimsFromOneTo256)
{
    for (const std::int64_t d : {1, 2, 3, 7, 8, 31, 59, 80, 111, 128, 192, 256}) {
        check({1, 1, 1, 19, 37, d, d}, {}, static_cast<std::uint64_t>(100 + d));
    }
}

TEST_P(Parity, ValueHeadDimDiffers)
{
    check({1, 2, 1, 40, 50, 192, 128}, {}, 10);
    check({1, 2, 1, 40, 50, 5, 256}, {}, 11);
    check({1, 2, 1, 40, 50, 256, 1}, {}, 12);
}

TEST_P(Parity, HeadDimsBeyond256)
{
    Options options;
    for (const auto& [d, d_v] :
         {std::pair{257, 257}, std::pair{288, 288}, std::pair{300, 260}, std::pair{320, 320}, std::pair{512, 512},
          std::pair{576, 512}, std::pair{40, 512}, std::pair{576, 1}, std::pair{260, 300}}) {
        const auto seed = static_cast<std::uint64_t>(1000 + d + d_v);
        options.causal = Causal::none;
        check({1, 2, 1, 35, 83, d, d_v}, options, seed);
        options.causal = Causal::bottom_right;
        check({1, 2, 2, 70, 67, d, d_v}, options, seed + 1);
    }
}

/// Multi-head latent attention: 128 query heads of one key head.
TEST_P(Parity, LatentHeads)
{
    Options options;
    check({1, 128, 1, 1, 90, 576, 512}, options, 60); // one query a head, and the heads are rows
    options.causal = Causal::bottom_right;
    check({1, 128, 1, 3, 50, 576, 512}, options, 61);
    check({1, 16, 1, 1, 77, 300, 260}, options, 62);
    check({1, 3, 1, 1, 77, 576, 512}, options, 63); // fewer rows than a vector has lanes
    AttentionCase packed({0, 4, 1, 0, 0, 576, 512}, {{1, 33, 0, 2}, {200, 40, 9, 1}}, dtype(), 64);
    packed.options.causal = Causal::bottom_right;
    check(packed);
}

TEST_P(Parity, FewQueriesAndGroupsOfOne)
{
    Options options;
    check({2, 6, 2, 1, 300, 64, 64}, options, 50);
    check({1, 7, 1, 1, 77, 40, 72}, options, 51);
    check({1, 40, 2, 1, 65, 33, 20}, options, 52); // more rows than a vector has lanes
    check({1, 4, 2, 3, 130, 128, 128}, options, 53);
    check({1, 2, 1, 7, 41, 96, 56}, options, 54);
    options.causal = Causal::bottom_right;
    check({2, 6, 2, 1, 129, 64, 64}, options, 55);
    check({1, 4, 1, 5, 90, 24, 24}, options, 56);
    options.causal = Causal::top_left; // sees one key
    check({1, 6, 2, 1, 50, 64, 64}, options, 57);
    AttentionCase padded({3, 8, 2, 1, 120, 64, 48}, dtype(), 58);
    padded.add_key_padding();
    check(padded);
}

TEST_P(Parity, EmptyAxes)
{
    check({1, 2, 2, 0, 10, 16, 16}, {}, 13);
    check({1, 2, 2, 10, 0, 16, 16}, {}, 14);
    check({0, 2, 2, 10, 10, 16, 16}, {}, 15);
    check({1, 2, 2, 0, 0, 16, 16}, {}, 16);
}

TEST_P(Parity, RowsWithNothingToAttendTo)
{
    Options options;
    options.causal = Causal::bottom_right; // the first 44 queries see no key
    AttentionCase attention({1, 2, 2, 108, 64, 32, 32}, dtype(), 17);
    attention.options = options;
    check(attention);
    const std::vector<double> o = doubles(attention.o);
    const std::vector<double> lse = doubles(attention.lse);
    const std::vector<double> dq = doubles(attention.dq);
    for (std::size_t x = 0; x < 44 * 2 * 32; ++x) {
        ASSERT_EQ(o[x], 0.0);
        ASSERT_EQ(dq[x], 0.0);
    }
    for (std::size_t i = 0; i < 44; ++i) {
        ASSERT_EQ(lse[i], -std::numeric_limits<double>::infinity());
    }
}

TEST_P(Parity, ExplicitScale)
{
    Options options;
    options.scale = 1.0;
    check({1, 1, 1, 48, 48, 8, 8}, options, 18);
    options.scale = -0.25;
    check({1, 1, 1, 48, 48, 8, 8}, options, 19);
    options.scale = 0.0;
    check({1, 1, 1, 48, 48, 8, 8}, options, 20);
}

TEST_P(Parity, InputsTimesFive)
{
    AttentionCase attention({1, 2, 2, 128, 128, 64, 64}, dtype(), 21, 5.0F);
    check(attention);
}

TEST_P(Parity, RandomShapes)
{
    std::mt19937_64 random(22);
    const auto pick = [&](std::int64_t low, std::int64_t high) {
        return std::uniform_int_distribution<std::int64_t>(low, high)(random);
    };
    for (int round = 0; round < 12; ++round) {
        const std::int64_t heads_kv = pick(1, 3);
        const Shape shape{pick(1, 2),   heads_kv * pick(1, 3), heads_kv,   pick(1, 160),
                          pick(1, 160), pick(1, 96),           pick(1, 96)};
        Options options;
        options.causal = static_cast<Causal>(pick(0, 2));
        options.window = pick(0, 1) == 0 ? Window{} : Window{pick(-1, 60), pick(-1, 60)};
        check(shape, options, random());
    }
}

} // namespace
} // namespace flashomp::testing
