// Cases that are made for one kind of mistake each: at the edges of blocks, in signs and sums that other cases do not
// see. tools/mutants keeps the mistakes.
#include "support/parity.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace flashomp::testing {
namespace {

class HardCases : public ParityTest {
protected:
    using ParityTest::check;
};

INSTANTIATE_TEST_SUITE_P(Machines, HardCases, parity_params(), parity_name);

/// The diagonals of a mask pass through the corners of tiles in as many ways as a block has rows: a tile that is taken
/// for one without a mask, and has one hidden score, shows in one of them. On the host the blocks are small; tensor
/// cores have blocks of their own, of up to 128 rows.
TEST_P(HardCases, MasksAtEveryPlaceAmongTheBlocks)
{
    const bool has_own_blocks = target_.is_device && target_.machine == Machine::automatic;
    const std::int64_t block = has_own_blocks ? 128 : 32;
    const std::int64_t queries = has_own_blocks ? 300 : 100;
    for (std::int64_t difference = -block / 2; difference < block / 2; ++difference) {
        for (const bool has_window : {false, true}) {
            SCOPED_TRACE(::testing::Message() << "Nk - Nq " << difference << (has_window ? " window" : " causal"));
            AttentionCase attention({1, 1, 1, queries, queries + difference, 8, 8}, dtype(), 900);
            if (has_window) {
                attention.options.window = {2 * block + 10, block - 3}; // leaves room for whole blocks
            } else {
                attention.options.causal = Causal::bottom_right;
            }
            if (!has_own_blocks) {
                attention.options.tiling = {32, 32};
            }
            check(attention);
        }
    }
}

/// A scale that turns the logits round: the largest dot product is the smallest logit, by hundreds, and whoever takes
/// it for the row's maximum has e^(some hundred).
TEST_P(HardCases, NegativeScaleOfLargeLogits)
{
    for (const Causal causal : {Causal::none, Causal::bottom_right}) {
        AttentionCase attention({1, 2, 1, 70, 150, 64, 64}, dtype(), 901, 3.0F);
        attention.options.scale = -1.0;
        attention.options.causal = causal;
        check(attention);
    }
    AttentionCase decoding({1, 4, 1, 1, 5000, 32, 32}, dtype(), 902, 3.0F); // split keys
    decoding.options.scale = -1.0;
    check(decoding);
}

/// A sink belongs to one part of the keys, not to each.
TEST_P(HardCases, SinkWithSplitKeys)
{
    for (const auto& [queries, keys] : {std::pair{1, 5000}, std::pair{3, 8200}, std::pair{16, 4099}}) {
        SCOPED_TRACE(::testing::Message() << queries << " queries, " << keys << " keys");
        AttentionCase attention({1, 4, 2, queries, keys, 16, 16}, dtype(), 903);
        attention.options.causal = Causal::bottom_right;
        attention.add_sink();
        auto* sink = static_cast<float*>(attention.sink.data());
        sink[0] = 9.0F; // as much as thousands of keys
        sink[1] = -HUGE_VALF;
        check(attention);
    }
    AttentionCase hidden({1, 2, 1, 2, 5000, 16, 16}, dtype(), 904); // the parts see nothing but the sink
    hidden.add_key_padding(1.0);
    hidden.add_sink();
    check(hidden);
}

/// As many parts as the host makes of one query's keys, and parts of which most see nothing.
TEST_P(HardCases, KeysInManyParts)
{
    AttentionCase attention({1, 1, 1, 1, 70000, 8, 8}, dtype(), 905);
    check(attention);
    AttentionCase windowed({1, 1, 1, 2, 70000, 8, 8}, dtype(), 906);
    windowed.options.window = {1500, 0};
    check(windowed);
}

/// As many key blocks as an H200 has multiprocessors, so that its crews add to dQ by turns, each from another query
/// block on or downwards: with a last block of its own length, query heads that share keys, head dims that the copy
/// engine does not bring, and masks. Other machines have one sequence.
TEST_P(HardCases, CrewsThatAddToTheSameQueries)
{
    const std::int64_t batch = target_.is_device && target_.machine == Machine::automatic ? 22 : 1;
    AttentionCase grouped({batch, 2, 1, 520, 760, 128, 128}, dtype(), 909);
    check(grouped);
    AttentionCase causal({batch, 1, 1, 577, 760, 128, 100}, dtype(), 910);
    causal.options.causal = Causal::bottom_right;
    check(causal);
    AttentionCase windowed({batch, 1, 1, 520, 760, 90, 90}, dtype(), 911);
    windowed.options.window = {300, 64};
    check(windowed);
}

/// LSE of -3000 is rounded by up to 1.2e-4, which every probability of its row takes over: backward divides by their
/// sum. One query's dV is one row of probabilities, so the common factor is dV's.
TEST_P(HardCases, RoundingOfALargeLseDoesNotReachDv)
{
    if (dtype() != DType::float32) {
        return; // whose own rounding is larger
    }
    AttentionCase attention({1, 16, 16, 1, 1024, 32, 32}, dtype(), 907);
    attention.bias = HostTensor(DType::float32, {1, 16, 1, 1});
    auto* bias = static_cast<float*>(attention.bias.data());
    for (int head = 0; head < 16; ++head) {
        bias[head] = -3000.0F - 7.7F * static_cast<float>(head);
    }
    attention.options.bias = std::as_const(attention.bias).view();
    check(attention);
    const std::vector<double> dv = doubles(attention.dv);
    const std::vector<double> exact = attention.expected().gradients.dv;
    for (std::size_t head = 0; head < 16; ++head) {
        double product = 0.0, squares = 0.0;
        for (std::size_t n = head * 32; n < dv.size(); n += 16UL * 32) {
            for (std::size_t x = n; x < n + 32; ++x) {
                product += dv[x] * exact[x];
                squares += exact[x] * exact[x];
            }
        }
        EXPECT_NEAR(product / squares, 1.0, 3e-5) << "head " << head;
    }
}

/// Values between two numbers of the type: o is rounded downwards everywhere, and with it D = Σ dO∘O of every row, by
/// as much as the gradients of the scores are. The dK pass sums over rows, where that would add up.
TEST_P(HardCases, CommonRoundingOfODoesNotReachDk)
{
    if (dtype() == DType::float32) {
        return;
    }
    for (const double softcap : {0.0, 30.0}) {
        SCOPED_TRACE(::testing::Message() << "softcap " << softcap);
        AttentionCase attention({1, 2, 1, 150, 90, 64, 64}, dtype(), 908);
        const double step = dtype() == DType::bfloat16 ? 0x1p-7 : 0x1p-10;
        HostTensor v(DType::float32, attention.v.shape());
        for (std::int64_t n = 0; n < v.elements(); ++n) {
            static_cast<float*>(v.data())[n] = static_cast<float>(1.0 + (n / 64 % 4 == 0 ? step : 0.0));
        }
        attention.v = io::converted(v, dtype());
        HostTensor dout(DType::float32, attention.dout.shape());
        std::fill_n(static_cast<float*>(dout.data()), dout.elements(), 1.0F);
        attention.dout = io::converted(dout, dtype());
        attention.options.softcap = softcap;
        expect_ran_on_target(attention.run(on_target(attention.options)).second, dtype()); // dQ has the error
        const std::vector<double> dk = doubles(attention.dk);
        const std::vector<double> exact = attention.expected().gradients.dk;
        double errors = 0.0, squares = 0.0;
        for (std::size_t n = 0; n < dk.size(); ++n) {
            errors += (dk[n] - exact[n]) * (dk[n] - exact[n]);
            squares += exact[n] * exact[n];
        }
        EXPECT_LT(std::sqrt(errors / squares), 0.03);
    }
}

} // namespace
} // namespace flashomp::testing
