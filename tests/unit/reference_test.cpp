// The reference against worked numbers and against itself: identities that any exact attention must satisfy.
#include "accuracy.hpp"
#include "reference.hpp"

#include "reference_case.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <limits>

namespace flashomp {
namespace {

using reference::backward;
using reference::BackwardResult;
using reference::forward;
using reference::ForwardResult;
using reference::max_error;
using testing::ReferenceCase;

constexpr double infinity = std::numeric_limits<double>::infinity();

/// The example of docs/algorithm.md: scale 1, no mask, dO = 1 in rows 0 and 2. Its printed values are rounded.
ReferenceCase worked_example()
{
    ReferenceCase c({1, 1, 1, 4, 4, 4, 4});
    c.q = {1, 0, 1, 0, 0, 1, 0, 1, 1, 0, 0, 0, 0, 1, 0, 0};
    c.k = {1, 0, 0, 0, 0, 1, 0, 0, 1, 0, 1, 0, 0, 1, 0, 1};
    c.v = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
    c.dout = {1, 1, 1, 1, 0, 0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 0};
    const auto view = [](const std::vector<double>& x) { return ReferenceCase::float64(x, {1, 4, 1, 4}); };
    c.problem.q = view(c.q);
    c.problem.k = view(c.k);
    c.problem.v = view(c.v);
    c.problem.dout = view(c.dout);
    c.problem.options.scale = 1.0;
    return c;
}

/// Replaces v by the identity in every head, so that o is the matrix of probabilities (after dropout).
void make_o_the_probabilities(ReferenceCase& c)
{
    const Problem& p = c.problem;
    ASSERT_EQ(p.head_dim_v, p.seqlen_k);
    for (std::size_t n = 0; n < c.v.size(); ++n) {
        const auto at = static_cast<std::int64_t>(n);
        c.v[n] = at % p.head_dim_v == at / (p.head_dim_v * p.heads_kv) % p.seqlen_k ? 1.0 : 0.0;
    }
}

void expect_same(const BackwardResult& a, const BackwardResult& b, double bound)
{
    EXPECT_LE(max_error(a.dq, b.dq), bound);
    EXPECT_LE(max_error(a.dk, b.dk), bound);
    EXPECT_LE(max_error(a.dv, b.dv), bound);
    EXPECT_LE(max_error(a.dbias, b.dbias), bound);
    EXPECT_LE(max_error(a.dsink, b.dsink), bound);
}

TEST(ReferenceWorkedExample, ForwardGivesThePrintedValues)
{
    const ReferenceCase c = worked_example();
    const ForwardResult result = forward(c.problem);
    EXPECT_LE(max_error(result.o, {7.20, 8.20, 9.20, 10.20, 9.88, 10.88, 11.88, 12.88, 6.08, 7.08, 8.08, 9.08, 7.92,
                                   8.92, 9.92, 10.92}),
              0.01);
    EXPECT_NEAR(result.lse[0], 2.0 + std::log(1.638), 0.001); // m + log ℓ
}

TEST(ReferenceWorkedExample, ProbabilitiesOfRowZero)
{
    ReferenceCase c = worked_example();
    make_o_the_probabilities(c);
    std::vector<double> p = forward(c.problem).o;
    p.resize(4);
    EXPECT_LE(max_error(p, {0.224, 0.083, 0.610, 0.083}), 0.001);
}

TEST(ReferenceWorkedExample, BackwardGivesThePrintedValues)
{
    const ReferenceCase c = worked_example();
    const BackwardResult result = backward(c.problem);
    for (std::size_t column = 0; column < 4; ++column) {
        EXPECT_NEAR(result.dv[column], 0.590, 0.001);
        EXPECT_NEAR(result.dv[4 + column], 0.217, 0.001);
        EXPECT_NEAR(result.dv[8 + column], 0.976, 0.001);
        EXPECT_NEAR(result.dv[12 + column], 0.217, 0.001);
    }
    EXPECT_LE(max_error(result.dq, {-1.19, 1.18, 4.38, 1.91, 0, 0, 0, 0, -3.14, 3.14, 4.28, 3.72, 0, 0, 0, 0}), 0.01);
    EXPECT_LE(max_error(result.dk, {-12.99, 0, -5.57, 0, -1.31, 0, -0.73, 0, 8.66, 0, 4.38, 0, 5.64, 0, 1.91, 0}),
              0.01);
}

TEST(ReferenceWorkedExample, GradientOfTheScoresAndItsRowSums)
{
    ReferenceCase c = worked_example();
    c.bias.assign(16, 0.0); // the gradient of a full bias is dS
    c.problem.options.bias = ReferenceCase::float64(c.bias, {1, 1, 4, 4});
    EXPECT_LE(max_error(backward(c.problem).dbias,
                        {-5.57, -0.73, 4.38, 1.91, 0, 0, 0, 0, -7.42, -0.58, 4.28, 3.72, 0, 0, 0, 0}),
              0.01);

    const std::vector<double> o = forward(c.problem).o;
    std::vector<double> d(4); // D = Σ dO ∘ O
    for (std::size_t n = 0; n < 16; ++n) {
        d[n / 4] += c.dout[n] * o[n];
    }
    // In full 34.8155 and 30.3031. Probabilities that are rounded to three digits give 34.83 for the first.
    EXPECT_LE(max_error(d, {34.8155, 0.0, 30.3031, 0.0}), 0.0001);
    EXPECT_LE(max_error(d, {34.83, 0.0, 30.30, 0.0}), 0.015);
}

TEST(ReferenceDeadRows, AreZeroWithLseMinusInfinityAndNoGradient)
{
    ReferenceCase c({1, 2, 1, 5, 3, 4, 6});
    c.add_bias();
    c.problem.options.causal = Causal::bottom_right; // rows 0 and 1 see no key
    const ForwardResult result = forward(c.problem);
    for (std::size_t row = 0; row < 5; ++row) {
        EXPECT_EQ(std::isinf(result.lse[row]) && result.lse[row] < 0.0, row < 2);
        for (std::size_t column = 0; column < 12; ++column) {
            EXPECT_EQ(result.o[row * 12 + column] == 0.0, row < 2);
        }
    }
    const BackwardResult gradients = backward(c.problem);
    for (std::size_t n = 0; n < std::size_t{2 * 2 * 4}; ++n) {
        EXPECT_EQ(gradients.dq[n], 0.0);
    }
    for (const auto* values : {&gradients.dq, &gradients.dk, &gradients.dv, &gradients.dbias}) {
        EXPECT_TRUE(std::all_of(values->begin(), values->end(), [](double x) { return std::isfinite(x); }));
    }
}

TEST(ReferenceDeadRows, ABiasOfMinusInfinityHidesAKeyLikeAMask)
{
    ReferenceCase c({2, 1, 1, 3, 3, 4, 4});
    c.bias.assign(3, -infinity);
    c.problem.options.bias = ReferenceCase::float64(c.bias, {1, 1, 1, 3});
    const ForwardResult result = forward(c.problem);
    EXPECT_EQ(result.o, std::vector<double>(24, 0.0));
    EXPECT_EQ(result.lse, std::vector<double>(6, -infinity));
    const BackwardResult gradients = backward(c.problem);
    EXPECT_EQ(gradients.dv, std::vector<double>(24, 0.0));
    EXPECT_EQ(gradients.dbias, std::vector<double>(3, 0.0));
}

TEST(ReferenceDeadRows, NoKeysAtAll)
{
    const ReferenceCase no_keys({2, 2, 1, 3, 0, 4, 5});
    EXPECT_EQ(forward(no_keys.problem).o, std::vector<double>(60, 0.0));
    EXPECT_EQ(forward(no_keys.problem).lse, std::vector<double>(12, -infinity));
    EXPECT_EQ(backward(no_keys.problem).dq, std::vector<double>(48, 0.0));

    const ReferenceCase no_queries({2, 2, 1, 0, 3, 4, 5});
    EXPECT_TRUE(forward(no_queries.problem).o.empty());
    EXPECT_EQ(backward(no_queries.problem).dk, std::vector<double>(24, 0.0));
}

TEST(ReferenceHeads, GroupedQueriesEqualRepeatedKeys)
{
    ReferenceCase grouped({2, 6, 2, 5, 7, 4, 3});
    const Problem& p = grouped.problem;
    ReferenceCase repeated({2, 6, 6, 5, 7, 4, 3});
    repeated.q = grouped.q;
    repeated.dout = grouped.dout;
    repeated.problem.q = ReferenceCase::float64(repeated.q, {2, 5, 6, 4});
    repeated.problem.dout = ReferenceCase::float64(repeated.dout, {2, 5, 6, 3});
    for (std::size_t row = 0; row < 14; ++row) {
        for (std::size_t h = 0; h < 6; ++h) {
            std::copy_n(&grouped.k[(row * 2 + h / 3) * 4], 4, &repeated.k[(row * 6 + h) * 4]);
            std::copy_n(&grouped.v[(row * 2 + h / 3) * 3], 3, &repeated.v[(row * 6 + h) * 3]);
        }
    }
    EXPECT_EQ(forward(p).o, forward(repeated.problem).o);
    const BackwardResult a = backward(p);
    const BackwardResult b = backward(repeated.problem);
    EXPECT_EQ(a.dq, b.dq);
    std::vector<double> dk(a.dk.size());
    for (std::size_t n = 0; n < b.dk.size(); ++n) {
        dk[(n / 24 * 2 + n % 24 / 12) * 4 + n % 4] += b.dk[n]; // three heads share one
    }
    EXPECT_LE(max_error(a.dk, dk), 1e-14);
}

TEST(ReferenceSink, IsOneMoreKeyWhoseValueIsZero)
{
    ReferenceCase c({1, 2, 2, 4, 5, 3, 3});
    c.add_sink();
    // The same as a sixth key with k = 0, v = 0 and the sink as its bias.
    ReferenceCase longer({1, 2, 2, 4, 6, 3, 3});
    longer.q = c.q;
    longer.dout = c.dout;
    longer.problem.q = c.problem.q;
    longer.problem.dout = c.problem.dout;
    std::fill(std::copy(c.k.begin(), c.k.end(), longer.k.begin()), longer.k.end(), 0.0);
    std::fill(std::copy(c.v.begin(), c.v.end(), longer.v.begin()), longer.v.end(), 0.0);
    longer.bias.assign(12, 0.0);
    longer.bias[5] = c.sink[0];
    longer.bias[11] = c.sink[1];
    longer.problem.options.bias = ReferenceCase::float64(longer.bias, {1, 2, 1, 6});

    EXPECT_LE(max_error(forward(c.problem).o, forward(longer.problem).o), 1e-15);
    EXPECT_LE(max_error(forward(c.problem).lse, forward(longer.problem).lse), 1e-15);
    const BackwardResult a = backward(c.problem);
    const BackwardResult b = backward(longer.problem);
    EXPECT_LE(max_error(a.dq, b.dq), 1e-15);
    EXPECT_LE(max_error(a.dsink, {b.dbias[5], b.dbias[11]}), 1e-15);
}

TEST(ReferenceSink, TakesWholeRowsThatSeeNothingElse)
{
    ReferenceCase c({1, 2, 2, 3, 0, 4, 4});
    c.add_sink();
    const ForwardResult result = forward(c.problem);
    EXPECT_EQ(result.o, std::vector<double>(24, 0.0));
    EXPECT_EQ(result.lse, (std::vector<double>{c.sink[0], c.sink[0], c.sink[0], c.sink[1], c.sink[1], c.sink[1]}));
    EXPECT_EQ(backward(c.problem).dsink, std::vector<double>(2, 0.0));
}

TEST(ReferenceScores, AlibiIsABias)
{
    ReferenceCase c({2, 2, 1, 4, 6, 3, 3});
    c.add_alibi(true);
    ReferenceCase same({2, 2, 1, 4, 6, 3, 3});
    same.add_bias();
    for (std::size_t n = 0; n < same.bias.size(); ++n) {
        const auto i = static_cast<double>(n / 6 % 4);
        const auto j = static_cast<double>(n % 6);
        same.bias[n] = -c.alibi_slopes[n / 24] * std::abs(i + 2.0 - j);
    }
    EXPECT_EQ(forward(c.problem).o, forward(same.problem).o);
    EXPECT_EQ(backward(c.problem).dq, backward(same.problem).dq);
}

TEST(ReferencePacked, EqualsOneCallPerSequence)
{
    const std::vector<std::int32_t> lengths_q{3, 0, 1, 5};
    const std::vector<std::int32_t> lengths_k{4, 2, 0, 3};
    ReferenceCase packed({0, 4, 2, 0, 0, 3, 5}, lengths_q, lengths_k);
    packed.add_alibi(true);
    packed.add_bias();
    packed.add_sink();
    packed.add_key_padding();
    packed.problem.options.causal = Causal::bottom_right;
    packed.problem.options.window.left = 2;
    const ForwardResult whole = forward(packed.problem);
    const BackwardResult whole_gradients = backward(packed.problem);
    BackwardResult sums = whole_gradients; // collects what the sequences give
    for (auto* values : {&sums.dq, &sums.dk, &sums.dv, &sums.dbias, &sums.dsink}) {
        std::fill(values->begin(), values->end(), 0.0);
    }
    const auto add = [](const std::vector<double>& from, std::vector<double>& to, std::int64_t start) {
        std::transform(from.begin(), from.end(), to.begin() + start, to.begin() + start, std::plus<>());
    };
    for (std::int64_t b = 0; b < 4; ++b) {
        const auto at = static_cast<std::size_t>(b);
        const std::int64_t first_q = packed.problem.starts_q[at];
        const std::int64_t first_k = packed.problem.starts_k[at];
        Problem one = packed.problem;
        one.batch = 1;
        one.seqlen_q = lengths_q[at];
        one.seqlen_k = lengths_k[at];
        one.starts_q.clear();
        one.starts_k.clear();
        const auto view = [](const std::vector<double>& x, std::int64_t first, std::int64_t rows, std::int64_t heads,
                             std::int64_t width) {
            return ConstTensorView::contiguous(x.data() + first * heads * width, DType::float64,
                                               {1, rows, heads, width});
        };
        one.q = view(packed.q, first_q, one.seqlen_q, 4, 3);
        one.k = view(packed.k, first_k, one.seqlen_k, 2, 3);
        one.v = view(packed.v, first_k, one.seqlen_k, 2, 5);
        one.dout = view(packed.dout, first_q, one.seqlen_q, 4, 5);
        one.options.alibi_slopes = ConstTensorView::contiguous(&packed.alibi_slopes[at * 4], DType::float64, {4});
        one.options.key_padding_mask.data = &packed.key_padding_mask[at * 4];
        one.options.bias.data = &packed.bias[at * 4 * 5 * 4];
        one.options.bias.shape = {1, 4, 5, 4};

        const ForwardResult part = forward(one);
        EXPECT_TRUE(std::equal(part.o.begin(), part.o.end(), whole.o.begin() + first_q * 20));
        for (std::int64_t n = 0; n < 4 * one.seqlen_q; ++n) {
            EXPECT_EQ(part.lse.at(static_cast<std::size_t>(n)),
                      whole.lse.at(static_cast<std::size_t>(n / one.seqlen_q * 9 + first_q + n % one.seqlen_q)));
        }
        const BackwardResult gradients = backward(one);
        add(gradients.dq, sums.dq, first_q * 12);
        add(gradients.dk, sums.dk, first_k * 6);
        add(gradients.dv, sums.dv, first_k * 10);
        add(gradients.dbias, sums.dbias, b * 4 * 5 * 4);
        add(gradients.dsink, sums.dsink, 0);
    }
    expect_same(whole_gradients, sums, 1e-15);
}

} // namespace
} // namespace flashomp
