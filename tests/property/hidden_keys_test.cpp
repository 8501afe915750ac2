// What a NaN or an infinity reaches: only rows that see the key or the query that holds it, on every machine, for every
// size of tiles and number of threads.
#include "support/parity.hpp"

#include "reference.hpp"

#include <bit>
#include <cmath>
#include <functional>
#include <limits>

namespace flashomp::testing {
namespace {

constexpr float nan = std::bit_cast<float>(0x7FFFFFFFU); // as a GPU makes it: all bits are set
constexpr float infinite = std::numeric_limits<float>::infinity();

/// Puts `value` into every element of row `row` of a tensor [batch, rows, heads, width] or, packed, [rows, ...].
void fill_row(HostTensor& tensor, std::int64_t batch, std::int64_t row, float value)
{
    const io::Shape& shape = tensor.shape();
    const bool packed = shape.size() == 3;
    const std::int64_t width = packed ? shape[1] * shape[2] : shape[2] * shape[3];
    const std::int64_t first = (packed ? row : batch * shape[1] + row) * width;
    for (std::int64_t x = first; x < first + width; ++x) {
        reference::write_element(tensor.view(), x, static_cast<double>(value));
    }
}

/// Puts what is not a number, of either sign and both kinds, into K and V of keys of sequence `batch`.
void spoil(AttentionCase& attention, std::int64_t batch, const std::function<bool(std::int64_t)>& is_hidden)
{
    constexpr std::array values{nan, infinite, -infinite};
    const std::int64_t keys = attention.packed() ? attention.k.shape()[0] : attention.shape().seqlen_k;
    for (std::int64_t j = 0; j < keys; ++j) {
        if (is_hidden(j)) {
            fill_row(attention.k, batch, j, values.at(static_cast<std::size_t>(j % 3)));
            fill_row(attention.v, batch, j, values.at(static_cast<std::size_t>((j + 1) % 3)));
        }
    }
}

/// EXPECTs the same pattern of what is not finite, and elsewhere differences below the bound. An LSE of −∞ stands for a
/// row without keys.
void expect_same(const std::string& name, const HostTensor& actual, const std::vector<double>& expected, double bound)
{
    const std::vector<double> values = doubles(actual);
    ASSERT_EQ(values.size(), expected.size()) << name;
    double worst = 0.0;
    for (std::size_t x = 0; x < values.size(); ++x) {
        const bool is_dead = name == "lse" && expected[x] == -infinite;
        const bool same = is_dead ? values[x] == expected[x] : std::isfinite(values[x]) == std::isfinite(expected[x]);
        ASSERT_TRUE(same) << name << " element " << x << " is " << values[x] << ", not " << expected[x];
        worst = std::isfinite(expected[x]) ? std::max(worst, std::abs(values[x] - expected[x])) : worst;
    }
    EXPECT_LE(worst, bound) << name;
}

class HiddenKeys : public TargetTest, public ::testing::WithParamInterface<std::tuple<Target, DType>> {
protected:
    void SetUp() override { use(std::get<Target>(GetParam())); }

    [[nodiscard]] static DType dtype() { return std::get<DType>(GetParam()); }

    /// Every result against the reference's, with several sizes of tiles and numbers of threads.
    void check(AttentionCase& attention)
    {
        attention.poison_outputs();
        const reference::Evaluation expected = reference::evaluate(attention.problem());
        const double bound = dtype() == DType::float32 ? 2e-4 : (dtype() == DType::bfloat16 ? 0.15 : 0.02);
        const bool has_small = target_.machine == Machine::plain && attention.shape().head_dim <= 192;
        const int small_blocks = !target_.is_device ? 32 : has_small ? 8 : 0; // a GPU's shared memory has an end
        for (const auto& [threads, stream_rows] : {std::pair{1, 0}, std::pair{2, small_blocks}}) {
            Options options = on_target(attention.options);
            options.threads = threads;
            options.tiling.stream_rows = stream_rows;
            SCOPED_TRACE(fmt::format("{} threads, {} stream rows", threads, stream_rows));
            const auto [first, second] = attention.run(options);
            expect_ran_on_target(first, dtype());
            expect_ran_on_target(second, dtype());
            expect_same("o", attention.o, expected.outputs.o, bound);
            expect_same("lse", attention.lse, expected.outputs.lse, bound);
            expect_same("dq", attention.dq, expected.gradients.dq, bound);
            expect_same("dk", attention.dk, expected.gradients.dk, bound);
            expect_same("dv", attention.dv, expected.gradients.dv, bound);
            if (attention.bias.rank() > 0) {
                expect_same("dbias", attention.dbias, expected.gradients.dbias, 4 * bound);
            }
            if (attention.sink.rank() > 0) {
                expect_same("dsink", attention.dsink, expected.gradients.dsink, 4 * bound);
            }
        }
    }

    static void expect_all_finite(const HostTensor& tensor, const char* name)
    {
        for (const double x : doubles(tensor)) {
            ASSERT_TRUE(std::isfinite(x)) << name;
        }
    }
};

INSTANTIATE_TEST_SUITE_P(Machines, HiddenKeys, parity_params(), parity_name);

/// Padding that hides the keys of each sequence for which is_hidden() holds.
void pad(AttentionCase& attention, const std::function<bool(std::int64_t)>& is_hidden)
{
    attention.add_key_padding(0.0);
    auto* mask = static_cast<std::uint8_t*>(attention.key_padding_mask.data());
    const std::int64_t keys = attention.shape().seqlen_k;
    for (std::int64_t x = 0; x < attention.key_padding_mask.elements(); ++x) {
        mask[x] = is_hidden(x % keys) ? 0 : 1;
    }
}

TEST_P(HiddenKeys, PaddedKeysMayHoldAnything)
{
    const std::vector<std::function<bool(std::int64_t)>> paddings{
        [](std::int64_t j) { return j >= 71; },          // right
        [](std::int64_t j) { return j < 37; },           // left
        [](std::int64_t j) { return j < 40 || j > 80; }, // both
        [](std::int64_t j) { return j % 7 == 3; },       // holes
        [](std::int64_t) { return true; },               // nothing is left
        [](std::int64_t j) { return j != 64; },          // one key is left
    };
    for (const auto& is_hidden : paddings) {
        for (const bool modified : {false, true}) {
            AttentionCase attention({2, 2, 1, 35, 110, 40, 24}, dtype(), 2301);
            pad(attention, is_hidden);
            if (modified) {
                attention.options.softcap = 10.0;
                attention.add_bias({false, true, false, false});
                attention.add_sink();
            }
            spoil(attention, 1, is_hidden); // the other sequence must not notice either
            check(attention);
            for (const auto& [tensor, name] : {std::pair{&attention.o, "o"}, std::pair{&attention.dq, "dq"},
                                               std::pair{&attention.dk, "dk"}, std::pair{&attention.dv, "dv"}}) {
                expect_all_finite(*tensor, name);
            }
        }
    }
}

TEST_P(HiddenKeys, AQueryAgainstAPaddedCacheSeesNothingOfThePadding)
{
    AttentionCase attention({1, 8, 2, 1, 1000, 64, 64}, dtype(), 2302);
    const auto is_hidden = [](std::int64_t j) { return j >= 777 || j == 5; };
    pad(attention, is_hidden);
    spoil(attention, 0, is_hidden);
    check(attention);
    expect_all_finite(attention.o, "o");
    expect_all_finite(attention.dq, "dq");
}

TEST_P(HiddenKeys, FewQueriesSeeNothingOfThePadding)
{
    for (const std::int64_t depth : {64, 128, 256}) {
        AttentionCase attention({2, 4, 2, 3, 700, depth, depth}, dtype(), 2310);
        const auto is_hidden = [](std::int64_t j) { return j >= 555 || j % 100 == 5; };
        pad(attention, is_hidden);
        AttentionCase large(attention.shape(), dtype(), 2311); // so that nothing is computed twice
        pad(large, is_hidden);
        for (std::int64_t j = 0; j < 700; ++j) {
            if (is_hidden(j)) {
                fill_row(large.k, 0, j, 100.0F);
                fill_row(large.v, 1, j, 1000.0F);
            }
        }
        check(large);
        spoil(attention, 1, is_hidden);
        fill_row(attention.dout, 0, 1, nan); // a row's gradient reaches its keys and no other row
        check(attention);
    }
}

TEST_P(HiddenKeys, AKeyReachesOnlyTheRowsThatSeeIt)
{
    for (const Causal causal : {Causal::top_left, Causal::bottom_right}) {
        for (const Window window : {Window{}, Window{40, 10}}) {
            AttentionCase attention({1, 2, 1, 90, 140, 32, 48}, dtype(), 2303);
            attention.options.causal = causal;
            attention.options.window = window;
            attention.add_sink();
            fill_row(attention.k, 0, 81, nan);
            fill_row(attention.v, 0, 83, infinite);
            fill_row(attention.k, 0, 139, nan);
            check(attention);
        }
    }
}

/// Every kernel for a head dim, at lengths that take the fast ones.
TEST_P(HiddenKeys, AtEveryHeadDim)
{
    for (const auto& [head_dim, head_dim_v] : {std::pair{96, 96}, std::pair{128, 128}, std::pair{192, 128},
                                               std::pair{256, 256}, std::pair{300, 260}, std::pair{576, 512}}) {
        SCOPED_TRACE(head_dim);
        AttentionCase attention({1, 2, 1, 70, 300, head_dim, head_dim_v}, dtype(), 2308);
        attention.options.causal = Causal::top_left; // keys from 70 on are seen by nobody
        fill_row(attention.v, 0, 50, nan);
        spoil(attention, 0, [](std::int64_t j) { return j >= 70; });
        check(attention);
    }
}

TEST_P(HiddenKeys, AQueryReachesOnlyTheKeysItSees)
{
    AttentionCase attention({1, 2, 2, 90, 90, 32, 32}, dtype(), 2304);
    attention.options.causal = Causal::bottom_right;
    attention.add_bias({true, true, false, false});
    fill_row(attention.q, 0, 20, nan);
    fill_row(attention.dout, 0, 31, infinite);
    check(attention);
}

TEST_P(HiddenKeys, ARowWithoutKeysAddsNothingToTheGradientOfASink)
{
    for (const double softcap : {0.0, 8.0}) {
        AttentionCase attention({1, 2, 1, 90, 40, 32, 32}, dtype(), 2309);
        attention.options.causal = Causal::bottom_right; // rows before 50 see nothing
        attention.options.softcap = softcap;
        attention.add_sink();
        fill_row(attention.dout, 0, 7, nan);
        check(attention);
        expect_all_finite(attention.dsink, "dsink");
    }
}

/// e^-320 is 0 in float32, of all keys of the first half: a part of the keys, where they are split.
TEST_P(HiddenKeys, AProbabilityThatRoundsToZeroStillShowsANan)
{
    AttentionCase attention({1, 1, 1, 1, 4096, 64, 64}, dtype(), 2310);
    for (std::int64_t j = 0; j < 4096; ++j) {
        fill_row(attention.k, 0, j, j < 2048 ? -40.0F : 0.0F);
    }
    fill_row(attention.q, 0, 0, 1.0F);
    fill_row(attention.v, 0, 100, nan);
    check(attention);
    EXPECT_TRUE(std::isnan(doubles(attention.o).front()));
}

TEST_P(HiddenKeys, AReportSaysWhatWasComputedTwice)
{
    AttentionCase attention({1, 2, 1, 40, 50, 32, 32}, dtype(), 2311);
    const auto clean = attention.run(on_target(attention.options));
    EXPECT_FALSE(clean.first.computed_twice || clean.second.computed_twice);
    fill_row(attention.v, 0, 10, nan);
    const auto spoilt = attention.run(on_target(attention.options));
    EXPECT_TRUE(spoilt.first.computed_twice && spoilt.second.computed_twice);
}

/// e^-LSE, which rows past the last key would have for a probability, is 10^6 here, more than float16 has. On an H200
/// these are enough key blocks for one pass, the last one of 120 keys.
TEST_P(HiddenKeys, KeysPastTheEndAreNoReasonToComputeTwice)
{
    const std::int64_t batch = target_.is_device && target_.machine == Machine::automatic ? 22 : 1;
    AttentionCase attention({batch, 1, 1, 520, 760, 128, 128}, dtype(), 2312);
    for (std::int64_t i = 0; i < 520; ++i) {
        fill_row(attention.q, 0, i, 1.0F);
    }
    for (std::int64_t j = 0; j < 760; ++j) {
        fill_row(attention.k, 0, j, -1.8F); // all logits are -20.4, LSE -13.7
    }
    const auto reports = attention.run(on_target(attention.options));
    EXPECT_FALSE(reports.first.computed_twice || reports.second.computed_twice);
    check(attention);
}

// Where a GPU computes all gradients in one pass, what a hidden key has for dQ is in the same sum as what others have.
TEST_P(HiddenKeys, AmongManyKeyBlocksMayHoldAnything)
{
    const bool is_large = target_.is_device && target_.machine != Machine::plain;
    const Shape size = is_large ? Shape{11, 2, 2, 520, 760, 128, 128} : Shape{2, 1, 1, 52, 76, 128, 128};
    const std::int64_t unseen = size.seqlen_q;
    const auto is_hidden = [=](std::int64_t j) { return j % 50 == 7 || j >= unseen; };
    AttentionCase attention(size, dtype(), 2308);
    pad(attention, [](std::int64_t j) { return j % 50 == 7; });
    attention.options.causal = Causal::top_left;
    spoil(attention, 1, is_hidden);
    check(attention);
    expect_all_finite(attention.dq, "dq");
    expect_all_finite(attention.dk, "dk");
}

TEST_P(HiddenKeys, ABiasOfMinusInfinityHides)
{
    AttentionCase attention({1, 2, 1, 50, 80, 24, 24}, dtype(), 2305);
    attention.add_bias({true, false, true, false}, DType::float32);
    auto* bias = static_cast<float*>(attention.bias.data());
    for (std::int64_t x = 0; x < attention.bias.elements(); ++x) {
        bias[x] = x % 80 == 17 || x % 80 == 79 ? -infinite : bias[x];
    }
    spoil(attention, 0, [](std::int64_t j) { return j == 17 || j == 79; });
    check(attention);
    expect_all_finite(attention.o, "o");
    expect_all_finite(attention.dk, "dk");
}

TEST_P(HiddenKeys, APackedSequenceSeesNothingOfItsNeighbours)
{
    AttentionCase attention({1, 2, 1, 1, 1, 32, 32}, Lengths{{30, 0, 45}, {50, 9, 70}}, dtype(), 2306);
    spoil(attention, 0, [](std::int64_t j) { return j >= 50 && j < 59; }); // of the second, which has no queries
    check(attention);
    expect_all_finite(attention.o, "o");
    expect_all_finite(attention.dk, "dk");
}

TEST_P(HiddenKeys, KeysBeyondEveryRowMayHoldAnything)
{
    AttentionCase attention({1, 2, 2, 40, 120, 32, 32}, dtype(), 2307);
    attention.options.causal = Causal::top_left; // keys from 40 on are seen by nobody
    attention.add_dropout(0.3);
    spoil(attention, 0, [](std::int64_t j) { return j >= 40; });
    check(attention);
    expect_all_finite(attention.o, "o");
    expect_all_finite(attention.dv, "dv");
}

} // namespace
} // namespace flashomp::testing
