#include "host_tensor.hpp"

#include "io_support.hpp"

#include <cmath>
#include <type_traits>
#include <utility>

namespace flashomp::io::test {
namespace {

static_assert(!std::is_copy_constructible_v<HostTensor> && !std::is_copy_assignable_v<HostTensor>);
static_assert(std::is_nothrow_move_constructible_v<HostTensor> && std::is_nothrow_move_assignable_v<HostTensor>);

TEST(HostTensor, IsAlignedZeroedAndRowMajor)
{
    for (const DType dtype : all_dtypes) {
        HostTensor tensor(dtype, {2, 3, 4, 5});
        EXPECT_EQ(reinterpret_cast<std::uintptr_t>(tensor.data()) % 64, 0U);
        EXPECT_EQ(tensor.elements(), 120);
        EXPECT_EQ(tensor.bytes(), 120 * size_of(dtype));
        const auto* const bytes = static_cast<const std::uint8_t*>(tensor.data());
        EXPECT_EQ(std::count(bytes, bytes + tensor.bytes(), 0), tensor.bytes());

        const TensorView view = tensor.view();
        EXPECT_EQ(view.data, tensor.data());
        EXPECT_EQ(view.dtype, dtype);
        EXPECT_EQ(view.rank, 4);
        EXPECT_EQ(view.shape, (std::array<std::int64_t, 4>{2, 3, 4, 5}));
        EXPECT_EQ(view.strides, (std::array<std::int64_t, 4>{60, 20, 5, 1}));
    }
}

TEST(HostTensor, PoisonIsNaN)
{
    const HostTensor single(DType::float32, {7}, Fill::poison);
    EXPECT_TRUE(std::isnan(static_cast<const float*>(single.data())[6]));
    const HostTensor half = converted(HostTensor(DType::float16, {7}, Fill::poison), DType::float64);
    EXPECT_TRUE(std::isnan(static_cast<const double*>(half.data())[6]));
}

TEST(HostTensor, RankZeroHasOneElementAndAZeroExtentNone)
{
    const HostTensor scalar(DType::float64, {});
    EXPECT_EQ(scalar.elements(), 1);
    EXPECT_EQ(scalar.bytes(), 8);
    EXPECT_NE(scalar.data(), nullptr);

    const HostTensor empty(DType::float64, {3, 0, 2});
    EXPECT_EQ(empty.elements(), 0);
    EXPECT_NE(empty.data(), nullptr);
    EXPECT_EQ(empty.view().elements(), 0);
}

TEST(HostTensor, HoldsNothingByDefaultAndAfterAMove)
{
    HostTensor tensor;
    EXPECT_EQ(tensor.data(), nullptr);
    EXPECT_EQ(tensor.elements(), 0);
    EXPECT_FALSE(tensor.view());

    HostTensor source = patterned(DType::int32, {2, 2});
    const void* const memory = source.data();
    tensor = std::move(source);
    EXPECT_EQ(tensor.data(), memory);
    EXPECT_EQ(source.data(), nullptr); // NOLINT(bugprone-use-after-move)
    EXPECT_EQ(source.elements(), 0);   // NOLINT(bugprone-use-after-move)
    EXPECT_FALSE(source.view());       // NOLINT(bugprone-use-after-move)
    EXPECT_EQ(converted(source, DType::int32).data(), nullptr);
    EXPECT_EQ(converted(HostTensor(), DType::float64).data(), nullptr);
    EXPECT_TRUE(doubles(HostTensor()).empty());
}

TEST(HostTensor, RefusesShapesThatCannotBe)
{
    constexpr std::int64_t large = std::int64_t{1} << 62;
    for (const Shape& shape : {Shape{-1}, Shape{2, -3}, Shape{large}, Shape{large, large}, Shape{0, large, large}}) {
        expect_sentence(sentence_of([&] { return HostTensor(DType::float32, shape); }), "cannot exist");
    }
    expect_sentence(sentence_of([] { return HostTensor(DType::float32, {1, 2, 3, 4, 5}); }), "5 axes");
    ConstTensorView view;
    view.rank = 5;
    expect_sentence(sentence_of([&] { return HostTensor::copy_of(view); }), "5 axes");
}

TEST(CheckedBytes, CountsAndRefuses)
{
    EXPECT_EQ(checked_bytes(DType::float16, {3, 5}), 30);
    EXPECT_EQ(checked_bytes(DType::int64, {}), 8);
    EXPECT_EQ(checked_bytes(DType::boolean, {4, 0}), 0);
    EXPECT_EQ(checked_bytes(DType::boolean, {INT64_MAX}), INT64_MAX);
    EXPECT_EQ(checked_bytes(DType::float16, {INT64_MAX}), std::nullopt);
    EXPECT_EQ(checked_bytes(DType::float16, {-1}), std::nullopt);
}

TEST(HostTensor, CopiesStridedViews)
{
    std::vector<std::int32_t> numbers(24);
    for (std::size_t i = 0; i < numbers.size(); ++i) {
        numbers[i] = static_cast<std::int32_t>(i);
    }
    const auto whole = ConstTensorView::contiguous(numbers.data(), DType::int32, {2, 3, 4});
    const HostTensor transposed = HostTensor::copy_of(whole.transposed(0, 2));
    ASSERT_EQ(transposed.shape(), (Shape{4, 3, 2}));
    const ConstTensorView rows(numbers.data() + 1, DType::int32, {2, 2}, {12, 1});
    const HostTensor slice = HostTensor::copy_of(rows);
    const ConstTensorView backwards(numbers.data() + 23, DType::int32, {24}, {-1});
    const HostTensor reversed = HostTensor::copy_of(backwards);

    const auto* const values = static_cast<const std::int32_t*>(transposed.data());
    for (int i = 0; i < 4; ++i) {
        for (int j = 0; j < 3; ++j) {
            for (int k = 0; k < 2; ++k) {
                EXPECT_EQ(values[(i * 3 + j) * 2 + k], (k * 3 + j) * 4 + i);
            }
        }
    }
    EXPECT_EQ(static_cast<const std::int32_t*>(slice.data())[2], 13);
    EXPECT_EQ(static_cast<const std::int32_t*>(reversed.data())[0], 23);
    EXPECT_EQ(static_cast<const std::int32_t*>(reversed.data())[23], 0);
}

} // namespace
} // namespace flashomp::io::test
