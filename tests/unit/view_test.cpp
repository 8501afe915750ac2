// Tensor views from vectors, arrays and spans: the same views as from lists in braces, and the same refusals.
#include "refusal.hpp"

#include "flashomp/attention.hpp"

#include <array>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include <gtest/gtest.h>

namespace flashomp::testing {
namespace {

template <class Pointer>
void expect_same(const BasicTensorView<Pointer>& a, const BasicTensorView<Pointer>& b)
{
    EXPECT_EQ(a.data, b.data);
    EXPECT_EQ(a.dtype, b.dtype);
    EXPECT_EQ(a.memory, b.memory);
    EXPECT_EQ(a.rank, b.rank);
    EXPECT_EQ(a.shape, b.shape);
    EXPECT_EQ(a.strides, b.strides);
}

TEST(View, ShapesComeFromVectorsArraysAndSpans)
{
    std::vector<float> values(24);
    const TensorView in_braces = TensorView::contiguous(values.data(), DType::float32, {2, 3, 4});
    const std::vector<std::int64_t> vector{2, 3, 4};
    const std::array<std::int64_t, 3> array{2, 3, 4};
    expect_same(TensorView::contiguous(values.data(), DType::float32, vector), in_braces);
    expect_same(TensorView::contiguous(values.data(), DType::float32, array), in_braces);
    expect_same(TensorView::contiguous(values.data(), DType::float32, std::span(vector)), in_braces);
    expect_same(TensorView(values.data(), DType::float32, vector, std::vector<std::int64_t>{12, 4, 1}), in_braces);
    expect_same(ConstTensorView::contiguous(values.data(), DType::float32, vector, Memory::device),
                ConstTensorView::contiguous(values.data(), DType::float32, {2, 3, 4}, Memory::device));
    EXPECT_EQ(TensorView::contiguous(values.data(), DType::float32, std::vector<std::int64_t>{}).rank, 0);
}

template <class Element>
void expect_dtype(DType dtype)
{
    std::array<Element, 6> values{};
    const std::span<const Element> constant = values;
    expect_same(TensorView::contiguous(std::span(values), {2, 3}),
                TensorView::contiguous(values.data(), dtype, {2, 3}));
    expect_same(ConstTensorView::contiguous(constant, std::vector<std::int64_t>{3, 2}),
                ConstTensorView::contiguous(values.data(), dtype, {3, 2}));
}

TEST(View, ElementsOfASpanGiveTheDType)
{
    expect_dtype<float>(DType::float32);
    expect_dtype<double>(DType::float64);
    expect_dtype<std::int32_t>(DType::int32);
    expect_dtype<std::int64_t>(DType::int64);
    expect_dtype<bool>(DType::boolean);
    static_assert(ViewedElement<const float, const void*> && !ViewedElement<const float, void*>);
    static_assert(!ViewedElement<std::uint16_t, const void*>, "bfloat16 or float16?");
}

TEST(View, OfAWrongRankIsRefused)
{
    std::vector<float> values(6);
    const std::vector<std::int64_t> five{1, 1, 1, 2, 3};
    const std::string sentence =
        "a tensor view was given 5 extents and 5 strides; it must have equally many, at most 4.";
    expect_refused(sentence, [&] { static_cast<void>(TensorView::contiguous(values.data(), DType::float32, five)); });
    expect_refused(sentence, [&] { static_cast<void>(TensorView::contiguous(std::span(values), five)); });
    expect_refused("a tensor view was given 2 extents and 1 strides", [&] {
        static_cast<void>(
            TensorView(values.data(), DType::float32, std::vector<std::int64_t>{2, 3}, std::vector<std::int64_t>{1}));
    });
}

TEST(View, OfAWrongSizeIsRefused)
{
    std::vector<float> values(6);
    const std::span<float> data = values;
    expect_refused("a tensor view of shape [2, 4] was given 6 elements; it must be given 8.", [&] {
        static_cast<void>(TensorView::contiguous(data, {2, 4}));
    });
    expect_refused("a tensor view of shape [] was given 6 elements; it must be given 0.",
                   [&] { static_cast<void>(TensorView::contiguous(data, std::vector<std::int64_t>{})); });
    const std::string impossible = "extents must be 0 or more, and their product an int64.";
    expect_refused(impossible, [&] { static_cast<void>(TensorView::contiguous(data, {-2, -3})); });
    expect_refused(impossible, [&] {
        static_cast<void>(TensorView::contiguous(data, {std::numeric_limits<std::int64_t>::max() / 3 + 3, 6}));
    });
    EXPECT_EQ(TensorView::contiguous(data.first(0), {4, 0, 2}).elements(), 0);
}

TEST(View, FromVectorsIsWhatACallTakes)
{
    const std::vector<float> q{1, 0}, k{1, 0, 0, 1}, v{1, 2, 3, 4};
    const std::vector<std::int64_t> row{1, 1, 1, 2}, two_rows{1, 2, 1, 2};
    std::vector<float> o(2), lse(1);
    forward({ConstTensorView::contiguous(std::span(q), row), ConstTensorView::contiguous(std::span(k), two_rows),
             ConstTensorView::contiguous(std::span(v), two_rows), TensorView::contiguous(std::span(o), row),
             TensorView::contiguous(std::span(lse), {1, 1, 1})});
    EXPECT_NEAR(o[0], 1.6605F, 1e-3F); // weights 0.6698 and 0.3302: exp(1/√2) to 1
    EXPECT_NEAR(o[1], 2.6605F, 1e-3F);
}

} // namespace
} // namespace flashomp::testing
