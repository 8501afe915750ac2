// The measure that every comparison with the reference uses, where values are not numbers.
#include "accuracy.hpp"

#include "element_as_double.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <gtest/gtest.h>
#include <random>
#include <string>
#include <vector>

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

/// A result of 256 rows of 16 elements whose naive error is 1 % of the values.
class JudgeTest : public ::testing::Test {
protected:
    JudgeTest()
    {
        std::mt19937_64 random(1);
        std::normal_distribution<double> normal;
        for (std::size_t n = 0; n < rows * elements; ++n) {
            exact.push_back(normal(random));
            naive.push_back(exact.back() * (1.0 + 0.01 * normal(random)));
        }
    }

    /// What fails of the exact values changed by `change(index, value)` and rounded to bfloat16.
    [[nodiscard]] std::string failures(const std::function<double(std::size_t, double)>& change,
                                       Result result = Result::dk, DType dtype = DType::bfloat16) const
    {
        std::vector<double> actual;
        for (std::size_t n = 0; n < exact.size(); ++n) {
            actual.push_back(round_to_bfloat16(static_cast<float>(change(n, exact[n]))));
        }
        const Judged judged{result, dtype, elements, rows, {}, 0.0};
        return judge(judged, actual, exact, naive).failures();
    }

    static constexpr std::int64_t rows = 256, elements = 16;
    std::vector<double> exact, naive;
};

TEST_F(JudgeTest, RoundingPasses)
{
    EXPECT_EQ(failures([](std::size_t, double x) { return x; }), "");
}

TEST_F(JudgeTest, ACommonFactorOfHalfAPercentFails)
{
    EXPECT_NE(failures([](std::size_t, double x) { return 1.005 * x; }).find("common factor"), std::string::npos);
    EXPECT_NE(failures([](std::size_t, double x) { return 0.995 * x; }).find("common factor"), std::string::npos);
}

TEST_F(JudgeTest, AMeanThatIsOffFails)
{
    EXPECT_NE(failures([](std::size_t, double x) { return x + 0.005; }).find("mean"), std::string::npos);
}

TEST_F(JudgeTest, ErrorsAsLargeAsNaiveOnesInEveryElementFail)
{
    const double largest = naive_error(naive, exact);
    const std::string failed =
        failures([largest](std::size_t n, double x) { return n % 2 == 0 ? x + largest : x - largest; });
    EXPECT_NE(failed.find("root mean square"), std::string::npos) << failed;
}

TEST_F(JudgeTest, ZerosFailWhereTheNaiveBaselineIsWorthless)
{
    std::transform(exact.begin(), exact.end(), naive.begin(), [](double x) { return -10.0 * x; });
    EXPECT_NE(failures([](std::size_t, double) { return 0.0; }, Result::dq), "");
}

TEST_F(JudgeTest, OAndGradientsHaveFactorsOfTheirOwn)
{
    const double largest = naive_error(naive, exact);
    const auto one_off = [largest](double times) {
        return [=](std::size_t n, double x) { return n == 40 ? x + times * largest : x; };
    };
    EXPECT_EQ(failures(one_off(0.9), Result::o), "");
    EXPECT_NE(failures(one_off(1.4), Result::o), "");
    EXPECT_EQ(failures(one_off(1.3), Result::dv), "");
    EXPECT_NE(failures(one_off(1.8), Result::dv), "");
}

TEST_F(JudgeTest, EightBitsMayRoundOneProbabilityWorseButNotAll)
{
    const double largest = naive_error(naive, exact);
    const auto failed = [this](const std::function<double(std::size_t, double)>& change) {
        return failures(change, Result::o, DType::float8_e4m3);
    };
    EXPECT_EQ(failed([=](std::size_t n, double x) { return n == 40 ? x + 2.5 * largest : x; }), "");
    EXPECT_NE(failed([=](std::size_t n, double x) { return n == 40 ? x + 3.5 * largest : x; }), "");
    EXPECT_NE(failed([=](std::size_t n, double x) { return n % 4 == 0 ? x + largest : x - largest; }), "");
    EXPECT_NE(failed([](std::size_t, double x) { return 1.01 * x; }), "");
}

TEST_F(JudgeTest, EarlyRowsDoNotExcuseLateOnes)
{
    for (std::size_t n = 0; n < exact.size(); ++n) { // as under a causal mask: early rows have few keys
        const double size = n < exact.size() / 4 ? 1.0 : 0.05;
        naive[n] = size * naive[n];
        exact[n] = size * exact[n];
    }
    const auto one_off = [this](std::size_t n, double x) { return n + 5 == exact.size() ? x + 0.008 : x; };
    const std::string failed = failures(one_off);
    EXPECT_NE(failed.find("largest difference of a block of rows"), std::string::npos) << failed;
    EXPECT_EQ(failed.find("largest difference 0"), std::string::npos) << failed;
}

TEST_F(JudgeTest, LseIsFloat32InEveryDtype)
{
    for (std::size_t n = 0; n < naive.size(); ++n) {
        naive[n] = static_cast<double>(static_cast<float>(exact[n]));
    }
    const Judged judged{Result::lse, DType::float32, 1, rows, {}, 0.0};
    std::vector<double> actual = naive;
    EXPECT_TRUE(judge(judged, actual, exact, naive).passed());
    actual[17] += 1e-4;
    EXPECT_FALSE(judge(judged, actual, exact, naive).passed());
}

TEST_F(JudgeTest, WhatIsNotANumberFails)
{
    EXPECT_NE(failures([](std::size_t n, double x) { return n == 9 ? nan_value : x; }), "");
    EXPECT_NE(failures([](std::size_t n, double x) { return n == 9 ? infinity : x; }), "");
    exact[9] = -infinity;
    EXPECT_EQ(failures([](std::size_t, double x) { return x; }), "");
    EXPECT_NE(failures([](std::size_t n, double x) { return n == 9 ? 0.0 : x; }), "");
    naive.pop_back();
    EXPECT_NE(failures([](std::size_t, double x) { return x; }), "");
}

} // namespace
} // namespace flashomp::reference
