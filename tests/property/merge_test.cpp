// Splitting keys at any point and merging the parts by LSE equals one pass.
#include "support/attention_case.hpp"
#include "support/target.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

namespace flashomp::testing {
namespace {

class Merge : public EveryTargetTest {
protected:
    struct Part {
        HostTensor o, lse;

        [[nodiscard]] Partial view() const { return {o.view(), lse.view()}; }
    };

    [[nodiscard]] static Part empty_like(const AttentionCase& attention, DType dtype)
    {
        const Shape& s = attention.shape();
        return {HostTensor(dtype, {s.batch, s.seqlen_q, s.heads_q, s.head_dim_v}, Fill::poison),
                HostTensor(DType::float32, {s.batch, s.heads_q, s.seqlen_q}, Fill::poison)};
    }

    /// Attention over the keys [first, last).
    Part attend(const AttentionCase& attention, std::int64_t first, std::int64_t last)
    {
        const auto keys = [&](const HostTensor& tensor) {
            ConstTensorView view = tensor.view();
            view.data = static_cast<const char*>(view.data) + first * view.strides[1] * size_of(view.dtype);
            view.shape[1] = last - first;
            return view;
        };
        Part part = empty_like(attention, attention.dtype());
        expect_ran_on_target(
            forward({attention.q.view(), keys(attention.k), keys(attention.v), part.o.view(), part.lse.view()},
                    on_target({})),
            attention.dtype());
        return part;
    }

    Part merged(const AttentionCase& attention, const Part& a, const Part& b, DType dtype)
    {
        Part result = empty_like(attention, dtype);
        merge(a.view(), b.view(), result.o.view(), result.lse.view(), on_target({}));
        return result;
    }

    static void expect_near(const Part& a, const Part& b, double tolerance)
    {
        EXPECT_LE(max_error(doubles(a.o), doubles(b.o)), tolerance) << "o";
        EXPECT_LE(max_error(doubles(a.lse), doubles(b.lse)), 1e-5) << "lse";
    }
};

INSTANTIATE_TEST_SUITE_P(Machines, Merge, ::testing::ValuesIn(targets()), target_name);

constexpr Shape shape{2, 4, 2, 37, 150, 32, 24};

/// What rounding o to the dtype costs, for values of about 1.
double rounding_of_o(DType dtype)
{
    return dtype == DType::float32 ? 1e-5 : dtype == DType::float16 ? 4e-3 : 3e-2;
}

TEST_P(Merge, SplittingKeysAnywhereEqualsOnePass)
{
    for (const DType dtype : {DType::float32, DType::bfloat16, DType::float16}) {
        const AttentionCase attention(shape, dtype, 951);
        const Part whole = attend(attention, 0, 150);
        for (const std::int64_t split : {0, 1, 7, 64, 65, 128, 149, 150}) {
            SCOPED_TRACE(::testing::Message() << name_of(dtype) << " split at " << split);
            const Part a = attend(attention, 0, split);
            const Part b = attend(attention, split, 150);
            expect_near(merged(attention, a, b, dtype), whole, rounding_of_o(dtype));
            expect_near(merged(attention, b, a, dtype), whole, rounding_of_o(dtype));
        }
    }
}

TEST_P(Merge, ManyPartsInAnyOrderThroughFloat32)
{
    const AttentionCase attention(shape, DType::bfloat16, 952);
    const Part whole = attend(attention, 0, 150);
    Part sum = merged(attention, attend(attention, 120, 150), attend(attention, 0, 30), DType::float32);
    for (const std::int64_t first : {60, 30, 90}) { // in place, as ring attention does
        const Part next = attend(attention, first, first + 30);
        merge(sum.view(), next.view(), sum.o.view(), sum.lse.view(), on_target({}));
    }
    expect_near(sum, whole, rounding_of_o(DType::bfloat16));
    Part swapped = attend(attention, 0, 50); // the second part in place, in 16 bits
    const Part rest = attend(attention, 50, 150);
    merge(rest.view(), swapped.view(), swapped.o.view(), swapped.lse.view(), on_target({}));
    expect_near(swapped, whole, rounding_of_o(DType::bfloat16));
}

TEST_P(Merge, AnEmptyPartIsTheIdentity)
{
    for (const DType dtype : {DType::float32, DType::bfloat16, DType::float16}) {
        const AttentionCase attention(shape, dtype, 953);
        const Part whole = attend(attention, 0, 150);
        const Part nothing = attend(attention, 70, 70);
        for (const Part& same : {merged(attention, whole, nothing, dtype), merged(attention, nothing, whole, dtype)}) {
            EXPECT_TRUE(same_bits(same.o, whole.o));
            EXPECT_TRUE(same_bits(same.lse, whole.lse));
        }
        const Part still_nothing = merged(attention, nothing, nothing, dtype);
        EXPECT_TRUE(same_bits(still_nothing.o, nothing.o));
        EXPECT_TRUE(same_bits(still_nothing.lse, nothing.lse));
    }
}

/// A part whose LSE is NaN is not one without keys.
TEST_P(Merge, ANaNStays)
{
    AttentionCase attention(shape, DType::float32, 957);
    auto* const row = static_cast<float*>(attention.q.data()) + (5 * shape.heads_q + 1) * shape.head_dim;
    std::fill(row, row + shape.head_dim, std::bit_cast<float>(0x7FFFFFFFU)); // query 5 of head 1
    const Part a = attend(attention, 0, 60);
    const Part result = merged(attention, a, attend(attention, 60, 150), DType::float32);
    const std::vector<double> lse = doubles(result.lse), o = doubles(result.o);
    for (std::size_t x = 0; x < lse.size(); ++x) {
        EXPECT_EQ(std::isnan(lse[x]), x == static_cast<std::size_t>(shape.seqlen_q) + 5) << x;
    }
    for (std::size_t x = 0; x < o.size(); ++x) {
        EXPECT_EQ(std::isnan(o[x]), x / static_cast<std::size_t>(shape.head_dim_v) == 5 * 4 + 1) << x;
    }
}

TEST_P(Merge, DeadRowsOfOneOrBothParts)
{
    const AttentionCase attention({1, 1, 1, 4, 10, 8, 8}, DType::float32, 954);
    Part a = attend(attention, 0, 5);
    Part b = attend(attention, 5, 10);
    const Part whole = attend(attention, 0, 10);
    const auto kill = [](Part& part, std::int64_t row) {
        static_cast<float*>(part.lse.data())[row] = -HUGE_VALF;
        std::fill_n(static_cast<float*>(part.o.data()) + row * 8, 8, 0.0F);
    };
    kill(a, 1);
    kill(b, 2);
    kill(a, 3);
    kill(b, 3);
    const Part result = merged(attention, a, b, DType::float32);
    const std::vector<double> o = doubles(result.o);
    const std::vector<double> lse = doubles(result.lse);
    const std::array<std::vector<double>, 3> expected{doubles(whole.o), doubles(b.o), doubles(a.o)};
    const std::array<std::vector<double>, 3> expected_lse{doubles(whole.lse), doubles(b.lse), doubles(a.lse)};
    for (std::size_t row = 0; row < 3; ++row) {
        EXPECT_NEAR(lse[row], expected_lse.at(row)[row], 1e-6);
        for (std::size_t c = 8 * row; c < 8 * row + 8; ++c) {
            EXPECT_NEAR(o[c], expected.at(row)[c], 1e-6);
        }
    }
    EXPECT_EQ(lse[3], -HUGE_VAL);
    EXPECT_TRUE(std::all_of(o.begin() + 24, o.end(), [](double x) { return x == 0.0; }));
}

TEST_P(Merge, WeightsOfAnySizeDoNotOverflow)
{
    const AttentionCase attention({1, 1, 1, 4, 10, 8, 8}, DType::float32, 955);
    Part a = attend(attention, 0, 5);
    Part b = attend(attention, 5, 10);
    auto* lse_a = static_cast<float*>(a.lse.data());
    auto* lse_b = static_cast<float*>(b.lse.data());
    std::copy_n(std::array{1e4F, -1e4F, 3e38F, 50.0F}.begin(), 4, lse_a);
    std::copy_n(std::array{-1e4F, -1.00001e4F, -3e38F, 50.0F}.begin(), 4, lse_b);
    const Part result = merged(attention, a, b, DType::float32);
    const std::vector<double> o = doubles(result.o);
    const std::vector<double> o_a = doubles(a.o);
    const std::vector<double> o_b = doubles(b.o);
    const std::vector<double> lse = doubles(result.lse);
    EXPECT_EQ(lse[0], 1e4);
    EXPECT_EQ(lse[2], static_cast<double>(3e38F));
    EXPECT_NEAR(lse[3], 50.0 + std::log(2.0), 1e-5);
    for (std::size_t c = 0; c < 32; ++c) {
        EXPECT_TRUE(std::isfinite(o[c]));
        if (c / 8 == 0 || c / 8 == 2) {
            EXPECT_EQ(o[c], o_a[c]);
        } else if (c / 8 == 3) {
            EXPECT_NEAR(o[c], 0.5 * (o_a[c] + o_b[c]), 1e-6);
        }
    }
}

TEST_P(Merge, PackedSequencesAndStrides)
{
    std::mt19937_64 random(956);
    const HostTensor o_a = random_tensor(random, DType::float32, {50, 3, 16});
    const HostTensor o_b = random_tensor(random, DType::float32, {50, 3, 16});
    const HostTensor lse_a = random_tensor(random, DType::float32, {3, 50});
    const HostTensor lse_b = random_tensor(random, DType::float32, {3, 50});
    HostTensor o(DType::float32, {50, 3, 16}, Fill::poison);
    HostTensor lse(DType::float32, {3, 50}, Fill::poison);
    merge({o_a.view(), lse_a.view()}, {o_b.view(), lse_b.view()}, o.view(), lse.view(), on_target({}));

    // The same as a batch of one, written head-major into a tensor with gaps.
    const auto batched = [](const HostTensor& tensor) {
        const ConstTensorView view = tensor.view();
        return tensor.rank() == 3 && tensor.dtype() == DType::float32 && tensor.shape()[2] == 16
                   ? ConstTensorView::contiguous(view.data, DType::float32, {1, 50, 3, 16})
                   : ConstTensorView::contiguous(view.data, DType::float32, {1, 3, 50});
    };
    HostTensor wide(DType::float32, {1, 3, 50, 20}, Fill::poison);
    HostTensor lse_again(DType::float32, {1, 3, 50}, Fill::poison);
    const TensorView inside(wide.data(), DType::float32, {1, 50, 3, 16}, {3000, 20, 1000, 1});
    merge({batched(o_a), batched(lse_a)}, {batched(o_b), batched(lse_b)}, inside, lse_again.view(), on_target({}));
    const HostTensor again = HostTensor::copy_of(inside);
    EXPECT_EQ(doubles(again), doubles(o));
    EXPECT_EQ(doubles(lse_again), doubles(lse));
    for (std::int64_t row = 0; row < 150; ++row) {
        ASSERT_TRUE(std::isnan(static_cast<const float*>(wide.data())[row * 20 + 16])) << "a gap was written";
    }
}

TEST_P(Merge, DecodingThatSplitsItsKeysGivesTheSameBitsForAnyNumberOfThreads)
{
    AttentionCase attention({1, 4, 1, 2, 6000, 32, 32}, DType::float32, 957);
    Options options = on_target({});
    options.threads = 1;
    static_cast<void>(attention.run(options));
    const Results one = attention.take_results();
    for (const int threads : {2, 3, 8}) {
        options.threads = threads;
        static_cast<void>(attention.run(options));
        expect_same_bits(attention.take_results(), one);
    }
}

} // namespace
} // namespace flashomp::testing
