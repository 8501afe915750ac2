// The reference's lower precisions, its reading and writing of elements, and its bytes over runs and threads.
#include "accuracy.hpp"
#include "element_as_double.hpp"
#include "reference.hpp"
#include "reference_case.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <numeric>
#include <utility>

namespace flashomp {
namespace {

using reference::backward;
using reference::BackwardResult;
using reference::forward;
using reference::ForwardResult;
using reference::max_error;
using reference::Rounding;
using testing::ReferenceCase;

ReferenceCase everything()
{
    ReferenceCase c({2, 4, 2, 33, 47, 24, 16});
    c.add_alibi(false);
    c.add_bias({true, false, true, false});
    c.add_sink();
    c.add_key_padding();
    c.problem.options.softcap = 5.0;
    c.problem.options.causal = Causal::bottom_right;
    c.problem.options.dropout = {0.2, 1, 2};
    return c;
}

TEST(ReferencePrecision, LowerOnesDifferByAPlausibleAmount)
{
    const ReferenceCase c = everything();
    const ForwardResult exact = forward(c.problem);
    const BackwardResult exact_gradients = backward(c.problem);
    // Relative to the largest value: between a tenth of the type's rounding step and a hundred of them.
    for (const auto& [rounding, step] : {std::pair{Rounding::float32, 0x1p-24}, std::pair{Rounding::float16, 0x1p-11},
                                         std::pair{Rounding::bfloat16, 0x1p-8}}) {
        SCOPED_TRACE(static_cast<int>(rounding));
        const ForwardResult naive = forward(c.problem, rounding);
        const BackwardResult gradients = backward(c.problem, rounding);
        const auto plausible = [step = step](const std::vector<double>& a, const std::vector<double>& b) {
            const double error = max_error(a, b) / max_error(b, std::vector<double>(b.size()));
            EXPECT_GT(error, 0.1 * step);
            EXPECT_LT(error, 100.0 * step);
        };
        plausible(naive.o, exact.o);
        plausible(naive.lse, exact.lse);
        plausible(gradients.dq, exact_gradients.dq);
        plausible(gradients.dk, exact_gradients.dk);
        plausible(gradients.dv, exact_gradients.dv);
        plausible(gradients.dbias, exact_gradients.dbias);
        plausible(gradients.dsink, exact_gradients.dsink);
    }
}

TEST(ReferencePrecision, SixteenBitResultsAreRepresentableInTheirType)
{
    const ReferenceCase c = everything();
    for (const double x : forward(c.problem, Rounding::bfloat16).o) {
        EXPECT_EQ(x, static_cast<double>(static_cast<Eigen::bfloat16>(static_cast<float>(x))));
    }
    for (const double x : backward(c.problem, Rounding::float16).dk) {
        EXPECT_EQ(x, static_cast<double>(static_cast<Eigen::half>(static_cast<float>(x))));
    }
}

TEST(ReferencePrecision, SameBitsOnEveryRunAndNumberOfThreads)
{
    ReferenceCase c = everything();
    c.problem.options.threads = 1;
    const BackwardResult once = backward(c.problem, Rounding::float32);
    for (const int threads : {1, 2, 3, 7}) {
        c.problem.options.threads = threads;
        const BackwardResult again = backward(c.problem, Rounding::float32);
        EXPECT_EQ(once.dq, again.dq);
        EXPECT_EQ(once.dk, again.dk);
        EXPECT_EQ(once.dv, again.dv);
        EXPECT_EQ(once.dbias, again.dbias);
        EXPECT_EQ(once.dsink, again.dsink);
    }
}

TEST(ReferenceElements, EverySixteenBitPatternSurvivesReadingAndWriting)
{
    constexpr std::int64_t patterns = 0x10000;
    std::vector<std::uint16_t> all(patterns);
    std::iota(all.begin(), all.end(), std::uint16_t{0});
    for (const DType dtype : {DType::float16, DType::bfloat16}) {
        std::vector<std::uint16_t> copy(patterns, 0xabcdU);
        for (std::int64_t n = 0; n < patterns; ++n) {
            const double value = reference::read_element(ConstTensorView::contiguous(all.data(), dtype, {patterns}), n);
            reference::write_element(TensorView::contiguous(copy.data(), dtype, {patterns}), n, value);
            const auto at = static_cast<std::size_t>(n);
            copy[at] = std::isnan(value) ? all[at] : copy[at]; // the bits inside a NaN may change
        }
        EXPECT_EQ(copy, all);
    }
}

TEST(ReferenceElements, RoundingAFloatIsConvertingItToTheTypeAndBack)
{
    const auto same = [](float a, float b) {
        return (std::isnan(a) && std::isnan(b)) || std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b);
    };
    std::int64_t different = 0;
    for (std::uint64_t pattern = 0; pattern <= 0xffffffffU; pattern += 0x3ffU) { // all exponents, all kinds of tails
        const auto value = std::bit_cast<float>(static_cast<std::uint32_t>(pattern));
        const auto bfloat16 = static_cast<float>(static_cast<Eigen::bfloat16>(value));
        const auto float16 = static_cast<float>(static_cast<Eigen::half>(value));
        different += same(reference::round_to_bfloat16(value), bfloat16) ? 0 : 1;
        different += same(reference::round_to_float16(value), float16) ? 0 : 1;
    }
    EXPECT_EQ(different, 0);
    // Ties and the ends of float16's range
    for (const float value : {0x1.002p0F, 0x1.006p0F, 65519.996F, 65520.0F, -65520.0F, 0x1p-25F, 0x1.8p-24F, -0x1p-26F,
                              0x1.ffcp-15F, 0x1.ffep-15F}) {
        EXPECT_TRUE(same(reference::round_to_float16(value), static_cast<float>(static_cast<Eigen::half>(value))))
            << value;
    }
}

TEST(ReferencePrecision, EvaluateIsForwardAndBackward)
{
    const ReferenceCase c = everything();
    for (const Rounding rounding : {Rounding::none, Rounding::float32, Rounding::bfloat16, Rounding::float16}) {
        const reference::Evaluation both = reference::evaluate(c.problem, rounding);
        const ForwardResult outputs = forward(c.problem, rounding);
        const BackwardResult gradients = backward(c.problem, rounding);
        EXPECT_EQ(both.outputs.o, outputs.o);
        EXPECT_EQ(both.outputs.lse, outputs.lse);
        EXPECT_EQ(both.gradients.dq, gradients.dq);
        EXPECT_EQ(both.gradients.dk, gradients.dk);
        EXPECT_EQ(both.gradients.dv, gradients.dv);
        EXPECT_EQ(both.gradients.dbias, gradients.dbias);
        EXPECT_EQ(both.gradients.dsink, gradients.dsink);
    }
}

TEST(ReferenceElements, RoundToNearestEvenOnce)
{
    const auto written = [](DType dtype, double value) {
        std::vector<std::uint64_t> memory(1);
        const TensorView view = TensorView::contiguous(memory.data(), dtype, {1});
        reference::write_element(view, 0, value);
        return reference::read_element(view, 0);
    };
    EXPECT_EQ(written(DType::float16, 1.0 + 0x1p-11), 1.0);              // a tie goes to even
    EXPECT_EQ(written(DType::float16, 1.0 + 3 * 0x1p-11), 1.0 + 0x1p-9); // here even is up
    // Just above a tie, by less than float can hold: rounding to float first would make it a tie.
    EXPECT_EQ(written(DType::float16, 1.0 + 0x1p-11 + 0x1p-40), 1.0 + 0x1p-10);
    EXPECT_EQ(written(DType::bfloat16, -1.0 - 0x1p-8 - 0x1p-40), -1.0 - 0x1p-7);
    EXPECT_EQ(written(DType::bfloat16, 1.0 + 3 * 0x1p-8 - 0x1p-40), 1.0 + 0x1p-7);
    EXPECT_EQ(written(DType::float16, 0x1p-24), 0x1p-24); // subnormal
    EXPECT_EQ(written(DType::float16, 65519.0), 65504.0);
    EXPECT_TRUE(std::isinf(written(DType::float16, 65520.0)));
    EXPECT_TRUE(std::isnan(written(DType::bfloat16, std::numeric_limits<double>::quiet_NaN())));
}

TEST(ReferenceInto, WritesThroughTheCallersStridesInItsDtype)
{
    ReferenceCase c({2, 2, 1, 3, 4, 2, 2});
    // o lies [B, H, N, d], inputs and outputs bfloat16.
    std::vector<std::uint16_t> q(c.q.size());
    std::vector<std::uint16_t> o(std::size_t{2 * 3 * 2 * 2});
    std::vector<float> lse(12);
    const TensorView q_view = TensorView::contiguous(q.data(), DType::bfloat16, {2, 3, 2, 2});
    for (std::size_t n = 0; n < q.size(); ++n) {
        reference::write_element(q_view, static_cast<std::int64_t>(n), c.q[n]);
    }
    c.problem.q = q_view;
    c.problem.dtype = DType::bfloat16;
    c.problem.o = TensorView::contiguous(o.data(), DType::bfloat16, {2, 2, 3, 2}).transposed(1, 2);
    c.problem.lse = TensorView::contiguous(lse.data(), DType::float32, {2, 2, 3});
    reference::forward_into(c.problem);
    const ForwardResult expected = forward(c.problem);
    for (std::int64_t n = 0; n < 24; ++n) {
        const std::int64_t b = n / 12;
        const std::int64_t i = n / 4 % 3;
        const std::int64_t h = n / 2 % 2;
        EXPECT_NEAR(reference::read_element(c.problem.o, ((b * 2 + h) * 3 + i) * 2 + n % 2),
                    expected.o[static_cast<std::size_t>(n)], 0x1p-8);
    }
    for (std::size_t n = 0; n < lse.size(); ++n) {
        EXPECT_EQ(lse[n], static_cast<float>(expected.lse[n]));
    }
}

TEST(ReferenceInto, BackwardWritesWhatWasAskedForOnly)
{
    ReferenceCase c = everything();
    const BackwardResult expected = backward(c.problem);
    std::vector<double> dq(c.q.size());
    std::vector<double> dbias(c.bias.size());
    c.problem.dq = TensorView::contiguous(dq.data(), DType::float64, {2, 33, 4, 24});
    c.problem.dbias = TensorView::contiguous(dbias.data(), DType::float64, {1, 4, 1, 47});
    reference::backward_into(c.problem);
    EXPECT_EQ(dq, expected.dq);
    EXPECT_EQ(dbias, expected.dbias);
}

TEST(ReferenceBytes, CountTheMatricesThatStandardAttentionKeeps)
{
    ReferenceCase c({2, 4, 2, 33, 47, 24, 16});
    c.problem.dtype = DType::bfloat16;
    EXPECT_EQ(reference::standard_attention_bytes(c.problem), 4 * 2 * 4 * 33 * 47 * 2);
    c.problem.is_backward = false;
    EXPECT_EQ(reference::standard_attention_bytes(c.problem), 2 * 2 * 4 * 33 * 47 * 2);

    ReferenceCase packed({0, 2, 1, 0, 0, 4, 4}, {3, 0, 7}, {5, 9, 2});
    packed.problem.dtype = DType::float32;
    EXPECT_EQ(reference::standard_attention_bytes(packed.problem), 4 * 2 * (3 * 5 + 7 * 2) * 4);
}

} // namespace
} // namespace flashomp
