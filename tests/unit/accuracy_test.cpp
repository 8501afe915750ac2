// The measure that every comparison with the reference uses, where values are not numbers.
#include "accuracy.hpp"

#include <cmath>
#include <gtest/gtest.h>

namespace flashomp::reference {
namespace {

constexpr double infinity = HUGE_VAL;
const double nan_value = std::nan("");

TEST(Accuracy, LargestDifference)
{
    EXPECT_EQ(max_error({}, {}), 0.0);
    EXPECT_EQ(max_error({1.0, -2.0, 3.0}, {1.5, -4.0, 3.0}), 2.0);
    EXPECT_EQ(naive_error({1.0, -2.0, 3.0}, {1.5, -4.0, 3.0}), 2.0);
}

TEST(Accuracy, InfinitiesMatchThemselvesAndNothingElse)
{
    EXPECT_EQ(max_error({-infinity, infinity}, {-infinity, infinity}), 0.0);
    EXPECT_EQ(max_error({infinity}, {-infinity}), infinity);
    EXPECT_EQ(max_error({1.0}, {-infinity}), infinity);
    EXPECT_EQ(max_error({-infinity}, {1.0}), infinity);
}

TEST(Accuracy, NanIsInfinitelyFarOffWhateverWasExpected)
{
    EXPECT_EQ(max_error({nan_value}, {1.0}), infinity);
    EXPECT_EQ(max_error({1.0}, {nan_value}), infinity);
    EXPECT_EQ(max_error({nan_value}, {nan_value}), infinity);
    EXPECT_EQ(max_error({nan_value, 1.0}, {1.0, 1.0}), infinity); // and a later good value does not hide it
}

TEST(Accuracy, AnotherSizeIsInfinitelyFarOff)
{
    EXPECT_EQ(max_error({1.0}, {1.0, 2.0}), infinity);
    EXPECT_EQ(max_error({1.0, 2.0}, {}), infinity);
}

TEST(Accuracy, OverflowOfTheBaselineExcusesNothing)
{
    EXPECT_EQ(naive_error({infinity, nan_value, 1.25}, {7.0, 7.0, 1.0}), 0.25);
    EXPECT_EQ(tolerance(gradient_factor, naive_error({infinity}, {7.0})), 1e-5);
    EXPECT_DOUBLE_EQ(tolerance(output_factor, 0.25), 0.50001);
}

} // namespace
} // namespace flashomp::reference
