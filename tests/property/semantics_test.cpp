// What must hold whatever the numbers are: statements about attention that need no reference.
#include "support/attention_case.hpp"
#include "support/target.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace flashomp::testing {
namespace {

constexpr double rounding = 2e-5; // float32, values of about 1, sums of about 100

class Semantics : public EveryTargetTest {
protected:
    Results run(AttentionCase& attention)
    {
        const auto [first, second] = attention.run(on_target(attention.options));
        expect_ran_on_target(first, attention.dtype());
        expect_ran_on_target(second, attention.dtype());
        return attention.take_results();
    }
};

INSTANTIATE_TEST_SUITE_P(Machines, Semantics, ::testing::ValuesIn(targets()), target_name);

void expect_near(const HostTensor& a, const HostTensor& b, const char* name, double tolerance = rounding)
{
    EXPECT_LE(max_error(doubles(a), doubles(b)), tolerance) << name;
}

void expect_near(const Results& a, const Results& b)
{
    expect_near(a.o, b.o, "o");
    expect_near(a.lse, b.lse, "lse");
    expect_near(a.dq, b.dq, "dq");
    expect_near(a.dk, b.dk, "dk");
    expect_near(a.dv, b.dv, "dv");
    if (a.dbias.rank() > 0) {
        expect_near(a.dbias, b.dbias, "dbias");
    }
    if (a.dsink.rank() > 0) {
        expect_near(a.dsink, b.dsink, "dsink");
    }
}

/// `source` with the entries of one axis in another order: entry j of the result is entry order[j] of the source.
HostTensor permuted(const HostTensor& source, std::size_t axis, const std::vector<std::int64_t>& order)
{
    HostTensor result(source.dtype(), source.shape());
    const io::Shape& shape = source.shape();
    const auto product = [&](std::size_t from, std::size_t to) {
        return std::accumulate(shape.begin() + static_cast<std::ptrdiff_t>(from),
                               shape.begin() + static_cast<std::ptrdiff_t>(to), std::int64_t{1}, std::multiplies<>());
    };
    const std::int64_t outer = product(0, axis);
    const std::int64_t inner = product(axis + 1, shape.size()) * size_of(source.dtype());
    const std::int64_t n = shape[axis];
    for (std::int64_t x = 0; x < outer; ++x) {
        for (std::int64_t j = 0; j < n; ++j) {
            std::memcpy(static_cast<char*>(result.data()) + (x * n + j) * inner,
                        static_cast<const char*>(source.data()) + (x * n + order[static_cast<std::size_t>(j)]) * inner,
                        static_cast<std::size_t>(inner));
        }
    }
    return result;
}

TEST_P(Semantics, PermutingKeysAndValuesChangesNothing)
{
    AttentionCase attention({2, 4, 2, 60, 150, 32, 24}, DType::float32, 901);
    attention.options.softcap = 10.0;
    attention.add_bias({false, true, false, false});
    attention.add_key_padding();
    attention.add_sink();
    const Results before = run(attention);

    std::vector<std::int64_t> order(150);
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), attention.random());
    attention.k = permuted(attention.k, 1, order);
    attention.v = permuted(attention.v, 1, order);
    attention.bias = permuted(attention.bias, 3, order);
    attention.key_padding_mask = permuted(attention.key_padding_mask, 1, order);
    attention.options.bias = std::as_const(attention.bias).view();
    attention.options.key_padding_mask = std::as_const(attention.key_padding_mask).view();
    Results after = run(attention);

    std::vector<std::int64_t> back(150);
    for (std::size_t j = 0; j < order.size(); ++j) {
        back[static_cast<std::size_t>(order[j])] = static_cast<std::int64_t>(j);
    }
    after.dk = permuted(after.dk, 1, back);
    after.dv = permuted(after.dv, 1, back);
    after.dbias = permuted(after.dbias, 3, back);
    expect_near(after, before);
}

TEST_P(Semantics, AConstantAddedToABiasRowChangesNothingButLse)
{
    AttentionCase attention({2, 2, 1, 40, 90, 32, 32}, DType::float32, 902);
    attention.options.causal = Causal::bottom_right;
    attention.add_bias();
    const Results before = run(attention);
    auto* bias = static_cast<float*>(attention.bias.data());
    for (std::int64_t row = 0; row < 2 * 2 * 40; ++row) {
        std::for_each(bias + row * 90, bias + (row + 1) * 90, [&](float& x) { x += static_cast<float>(row % 7 - 3); });
    }
    Results after = run(attention);
    auto* lse = static_cast<float*>(after.lse.data()); // [B, Hq, Nq], row by row as the bias
    for (std::int64_t row = 0; row < 2 * 2 * 40; ++row) {
        lse[row] -= static_cast<float>(row % 7 - 3);
    }
    expect_near(after, before);
}

TEST_P(Semantics, GroupedHeadsEqualRepeatedKeys)
{
    AttentionCase grouped({2, 6, 2, 50, 70, 32, 24}, DType::float32, 903);
    grouped.options.causal = Causal::bottom_right;
    grouped.add_alibi();
    grouped.add_sink();
    AttentionCase repeated({2, 6, 6, 50, 70, 32, 24}, DType::float32, 903);
    repeated.options = grouped.options;
    repeated.q = HostTensor::copy_of(std::as_const(grouped.q).view());
    repeated.dout = HostTensor::copy_of(std::as_const(grouped.dout).view());
    const auto repeat = [](const HostTensor& few, HostTensor& many) {
        const std::int64_t d = few.shape()[3];
        for (std::int64_t row = 0; row < 2 * 70; ++row) {
            for (std::int64_t h = 0; h < 6; ++h) {
                const float* from = static_cast<const float*>(few.data()) + (row * 2 + h / 3) * d;
                std::copy(from, from + d, static_cast<float*>(many.data()) + (row * 6 + h) * d);
            }
        }
    };
    repeat(grouped.k, repeated.k);
    repeat(grouped.v, repeated.v);
    const Results few = run(grouped);
    const Results many = run(repeated);
    expect_near(few.o, many.o, "o");
    expect_near(few.lse, many.lse, "lse");
    expect_near(few.dq, many.dq, "dq");
    const auto summed = [](const HostTensor& all, std::int64_t d) { // over the heads of each group
        std::vector<double> sums(static_cast<std::size_t>(2 * 70 * 2 * d));
        const std::vector<double> values = doubles(all);
        for (std::size_t x = 0; x < values.size(); ++x) {
            const auto at = static_cast<std::int64_t>(x);
            sums[static_cast<std::size_t>(at / (3 * d) * d + at % d)] += values[x];
        }
        return sums;
    };
    EXPECT_LE(max_error(doubles(few.dk), summed(many.dk, 32)), rounding);
    EXPECT_LE(max_error(doubles(few.dv), summed(many.dv, 24)), rounding);
}

TEST_P(Semantics, AnUnboundedWindowIsNoWindow)
{
    for (const DType dtype : {DType::float32, DType::bfloat16}) {
        AttentionCase attention({1, 2, 2, 70, 130, 32, 32}, dtype, 904);
        const Results none = run(attention);
        attention.options.window = {-1, -1};
        expect_same_bits(run(attention), none);
        attention.options.window = {130, 130}; // reaches every key from every row
        expect_same_bits(run(attention), none);
        attention.options.window = {INT64_MAX, INT64_MAX};
        expect_same_bits(run(attention), none);
    }
}

TEST_P(Semantics, ACausalMaskIsAWindowWithNothingOnTheRight)
{
    AttentionCase attention({1, 2, 2, 90, 130, 32, 32}, DType::float32, 905);
    attention.options.causal = Causal::bottom_right;
    const Results causal = run(attention);
    attention.options.causal = Causal::none;
    attention.options.window = {-1, 0};
    expect_same_bits(run(attention), causal);
}

TEST_P(Semantics, SoftcapToInfinityIsNoSoftcap)
{
    AttentionCase attention({1, 4, 2, 60, 80, 32, 32}, DType::float32, 906);
    const Results none = run(attention);
    for (const double softcap : {1e5, 1e8, 1e20, 1e30, 3.4e38}) {
        SCOPED_TRACE(softcap);
        attention.options.softcap = softcap;
        expect_near(run(attention), none);
    }
}

TEST_P(Semantics, TheWeakestOptionsAreNoOptions)
{
    AttentionCase attention({2, 2, 2, 60, 80, 32, 32}, DType::float32, 907);
    const Results none = run(attention);
    attention.add_bias();
    attention.bias = HostTensor(DType::float32, attention.bias.shape());
    attention.options.bias = std::as_const(attention.bias).view();
    attention.add_alibi(true);
    attention.alibi_slopes = HostTensor(DType::float32, {2, 2});
    attention.options.alibi_slopes = std::as_const(attention.alibi_slopes).view();
    attention.add_key_padding(0.0);
    attention.add_sink();
    std::fill_n(static_cast<float*>(attention.sink.data()), 2, -HUGE_VALF);
    attention.options.dropout = {0.0, 1, 2};
    const Results some = run(attention);
    const std::vector<double> dsink = doubles(some.dsink);
    EXPECT_EQ(dsink, std::vector<double>(2, 0.0));
    expect_near(none, some);
}

TEST_P(Semantics, PackedSequencesEqualOneCallEach)
{
    const Lengths lengths{{33, 0, 70, 1, 64, 5}, {50, 20, 64, 200, 0, 5}};
    for (const Causal causal : {Causal::none, Causal::top_left, Causal::bottom_right}) {
        AttentionCase packed({0, 4, 2, 0, 0, 32, 24}, lengths, DType::float32, 908);
        packed.options.causal = causal;
        packed.options.softcap = 20.0;
        packed.add_alibi();
        packed.add_sink();
        packed.add_bias({false, false, false, false});
        const Results all = run(packed);
        std::vector<double> dsink(4);
        std::int64_t first_q = 0;
        std::int64_t first_k = 0;
        for (std::size_t b = 0; b < lengths.q.size(); ++b) {
            SCOPED_TRACE(::testing::Message() << "sequence " << b);
            const std::int64_t n_q = lengths.q[b];
            const std::int64_t n_k = lengths.k[b];
            const auto rows = [](const auto& tensor, std::int64_t first, std::int64_t count) {
                ConstTensorView view = std::as_const(tensor).view();
                view.data = static_cast<const float*>(view.data) + first * view.strides[0];
                view.shape[0] = count;
                return HostTensor::copy_of(view);
            };
            const auto batched = [&](const HostTensor& tensor, std::int64_t first, std::int64_t count) {
                ConstTensorView view = tensor.view();
                return HostTensor::copy_of({static_cast<const float*>(view.data) + first * view.strides[0],
                                            DType::float32,
                                            {1, count, view.shape[1], view.shape[2]},
                                            {0, view.strides[0], view.strides[1], 1}});
            };
            AttentionCase one({1, 4, 2, n_q, n_k, 32, 24}, DType::float32, 909);
            one.options = packed.options;
            one.options.cu_seqlens_q = one.options.cu_seqlens_k = {};
            one.q = batched(packed.q, first_q, n_q);
            one.k = batched(packed.k, first_k, n_k);
            one.v = batched(packed.v, first_k, n_k);
            one.dout = batched(packed.dout, first_q, n_q);
            const ConstTensorView bias = std::as_const(packed.bias).view();
            const std::int64_t offset = static_cast<std::int64_t>(b) * bias.strides[0];
            one.bias = HostTensor(DType::float32, {1, 4, n_q, n_k}); // for the shape of dbias
            one.sink = HostTensor::copy_of(std::as_const(packed.sink).view());
            one.options.bias = {static_cast<const float*>(bias.data) + offset,
                                DType::float32,
                                {1, 4, n_q, n_k},
                                {bias.strides[0], bias.strides[1], bias.strides[2], 1}};
            const Results single = run(one);
            expect_near(rows(all.o, first_q, n_q), single.o, "o");
            expect_near(rows(all.dq, first_q, n_q), single.dq, "dq");
            expect_near(rows(all.dk, first_k, n_k), single.dk, "dk");
            expect_near(rows(all.dv, first_k, n_k), single.dv, "dv");
            const ConstTensorView lse = all.lse.view();
            const ConstTensorView part(
                {static_cast<const float*>(lse.data) + first_q, DType::float32, {1, 4, n_q}, {0, lse.strides[0], 1}});
            expect_near(HostTensor::copy_of(part), single.lse, "lse");
            const ConstTensorView dbias({static_cast<const float*>(all.dbias.data()) + offset,
                                         DType::float32,
                                         {1, 4, n_q, n_k},
                                         {0, bias.strides[1], bias.strides[2], 1}});
            expect_near(HostTensor::copy_of(dbias), single.dbias, "dbias");
            const std::vector<double> sink_part = doubles(single.dsink);
            std::transform(dsink.begin(), dsink.end(), sink_part.begin(), dsink.begin(), std::plus<>());
            first_q += n_q;
            first_k += n_k;
        }
        EXPECT_LE(max_error(doubles(all.dsink), dsink), rounding) << "dsink";
    }
}

TEST_P(Semantics, BackwardFromSavedOutputsGivesTheSameBits)
{
    AttentionCase attention({2, 4, 2, 60, 150, 32, 24}, DType::bfloat16, 910);
    attention.options.softcap = 10.0;
    attention.add_bias({true, false, false, false});
    attention.add_sink();
    attention.add_dropout(0.17);
    const Results first = run(attention);
    attention.poison_outputs();
    attention.o = HostTensor::copy_of(first.o.view());
    attention.lse = HostTensor::copy_of(first.lse.view());
    backward(attention.backward_args(), on_target(attention.options));
    expect_same_bits(attention.take_results(), first);
}

TEST_P(Semantics, SavedStridedBiasAndMaskReadAsTheirCopies)
{
    AttentionCase attention({2, 2, 2, 40, 60, 16, 16}, DType::float32, 911);
    attention.add_bias();
    attention.add_key_padding();
    const Results whole = run(attention);
    // The same bias inside a wider tensor, the same mask every other row.
    HostTensor wide(DType::float32, {2, 40, 2, 64}, Fill::poison);
    HostTensor tall(DType::boolean, {4, 60});
    const ConstTensorView inside(wide.data(), DType::float32, {2, 2, 40, 60}, {40 * 2 * 64, 64, 2 * 64, 1});
    for (std::int64_t row = 0; row < 2 * 2 * 40; ++row) {
        const auto [b, h, i] = std::array{row / 80, row / 40 % 2, row % 40};
        const float* from = static_cast<const float*>(attention.bias.data()) + row * 60;
        std::copy(from, from + 60, static_cast<float*>(wide.data()) + b * 40 * 128 + h * 64 + i * 128);
    }
    for (std::int64_t b = 0; b < 2; ++b) {
        const auto* from = static_cast<const std::uint8_t*>(attention.key_padding_mask.data()) + b * 60;
        std::copy(from, from + 60, static_cast<std::uint8_t*>(tall.data()) + b * 120);
    }
    attention.options.bias = inside;
    attention.options.key_padding_mask = {tall.data(), DType::boolean, {2, 60}, {120, 1}};
    expect_same_bits(run(attention), whole);
}

} // namespace
} // namespace flashomp::testing
