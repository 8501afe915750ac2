// The elementary functions and conversions that the kernels are made of: error bounds over whole ranges, special
// values, and bit-for-bit agreement with the io layer's conversions.
#include "algorithm/element.hpp"
#include "algorithm/math.hpp"
#include "convert.hpp"
#include "float8.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

namespace flashomp::offload {
namespace {

constexpr std::uint32_t sign_bit = 0x80000000U;
constexpr std::uint32_t smallest_normal = 0x00800000U;
constexpr std::uint32_t infinity_bits = 0x7F800000U;

/// Calls f with floats from `first` to `last`, which have the same sign, `step` apart in bits. Odd steps, so that the
/// low bits take every value.
template <class F>
void for_floats(float first, float last, std::uint32_t step, F f)
{
    for (std::uint64_t bits = bits_of(first); bits <= bits_of(last); bits += step) {
        f(float_of(static_cast<std::uint32_t>(bits)));
    }
}

/// The largest error of an approximation and where it is.
struct Worst {
    double error = 0.0;
    float at = 0.0F;

    void take(double candidate, float x)
    {
        if (!(candidate <= error)) { // a NaN is the worst
            error = candidate;
            at = x;
        }
    }
};

double relative_error(float value, double exact)
{
    return std::abs(value - exact) / std::abs(exact);
}

TEST(Exp2Fast, StaysBelowItsErrorBoundOverItsWholeRange)
{
    Worst worst;
    const auto measure = [&](float x) { worst.take(relative_error(exp2_fast(x), std::exp2(double{x})), x); };
    for_floats(0.0F, 127.0F, 101, measure);
    for_floats(-0.0F, -125.0F, 101, measure);
    EXPECT_LT(worst.error, 2.5e-7) << "at " << worst.at;
}

TEST(Exp2Fast, IsExactAtWholeNumbers)
{
    for (int n = -125; n <= 127; ++n) {
        EXPECT_EQ(exp2_fast(static_cast<float>(n)), std::ldexp(1.0F, n));
    }
}

TEST(Exp2Fast, IsExactlyZeroFarBelow)
{
    EXPECT_EQ(bits_of(exp2_fast(-infinity)), 0U);
    EXPECT_EQ(exp2_fast(std::nextafter(-125.0F, -infinity)), 0.0F);
    EXPECT_EQ(exp2_fast(-126.0F), 0.0F);
    EXPECT_EQ(exp2_fast(std::numeric_limits<float>::lowest()), 0.0F);
    for_floats(std::nextafter(-125.0F, -infinity), std::numeric_limits<float>::lowest(), 99991,
               [](float x) { ASSERT_EQ(exp2_fast(x), 0.0F) << x; });
}

/// A GPU's NaN has all bits set, and inputs may hold any.
TEST(Exp2Fast, KeepsEveryNaN)
{
    for (std::uint32_t payload = 1; payload < 0x00800000U; payload = payload * 3 + 1) {
        for (const std::uint32_t bits : {0x7F800000U | payload, 0xFF800000U | payload, 0x7FC00000U | payload}) {
            ASSERT_TRUE(std::isnan(exp2_fast(float_of(bits)))) << bits;
        }
    }
    EXPECT_TRUE(std::isnan(exp2_fast(float_of(0x7FFFFFFFU))));
}

TEST(Exp2Fast, NeverReturnsADenormal)
{
    for_floats(-120.0F, -130.0F, 1, [](float x) {
        const float y = exp2_fast(x);
        ASSERT_TRUE(y == 0.0F || y >= float_of(smallest_normal)) << x;
    });
}

TEST(Log2Fast, StaysBelowItsErrorBoundForEveryMantissa)
{
    Worst worst;
    for_floats(std::sqrt(0.5F), std::nextafter(std::sqrt(2.0F), 0.0F), 3,
               [&](float x) { worst.take(std::abs(log2_fast(x) - std::log2(double{x})), x); });
    EXPECT_LT(worst.error, 3e-7) << "at " << worst.at;
}

TEST(Log2Fast, AddsOnlyTheRoundingOfTheResultElsewhere)
{
    Worst worst;
    for_floats(float_of(smallest_normal), std::numeric_limits<float>::max(), 4999, [&](float x) {
        const double exact = std::log2(double{x});
        const double rounding = std::abs(exact) * std::numeric_limits<float>::epsilon() / 2;
        worst.take(std::abs(log2_fast(x) - exact) - rounding, x);
    });
    EXPECT_LT(worst.error, 3e-7) << "at " << worst.at;
}

TEST(Log2Fast, IsExactAtPowersOfTwo)
{
    for (int n = -126; n <= 127; ++n) {
        EXPECT_EQ(log2_fast(std::ldexp(1.0F, n)), static_cast<float>(n));
    }
}

TEST(TanhFast, StaysBelowItsErrorBoundOverItsWholeRange)
{
    Worst worst;
    for_floats(float_of(smallest_normal), std::numeric_limits<float>::max(), 2003,
               [&](float x) { worst.take(relative_error(tanh_fast(x), std::tanh(double{x})), x); });
    EXPECT_LT(worst.error, 5e-7) << "at " << worst.at;
}

TEST(TanhFast, IsOddBoundedByOneAndExactAtTheEnds)
{
    for_floats(0.0F, std::numeric_limits<float>::max(), 20011, [](float x) {
        ASSERT_EQ(tanh_fast(-x), -tanh_fast(x)) << x;
        ASSERT_LE(tanh_fast(x), 1.0F) << x;
    });
    EXPECT_EQ(tanh_fast(0.0F), 0.0F);
    EXPECT_EQ(tanh_fast(infinity), 1.0F);
    EXPECT_EQ(tanh_fast(-infinity), -1.0F);
}

TEST(Conversions, EveryBFloat16AndFloat16WidensAsInTheIoLayer)
{
    for (std::uint32_t n = 0; n <= 0xFFFFU; ++n) {
        const auto half = static_cast<std::uint16_t>(n);
        ASSERT_EQ(bits_of(to_float(BFloat16{half})), bits_of(io::float_from_bfloat16(half))) << n;
        ASSERT_EQ(bits_of(to_float(Float16{half})), bits_of(io::float_from_float16(half))) << n;
    }
}

TEST(Conversions, EveryBFloat16AndFloat16ComesBackUnchanged)
{
    for (std::uint32_t n = 0; n <= 0xFFFFU; ++n) {
        const auto half = static_cast<std::uint16_t>(n);
        BFloat16 brain{};
        from_float(to_float(BFloat16{half}), brain);
        const bool brain_is_nan = (n & 0x7FFFU) > 0x7F80U; // made quiet
        ASSERT_EQ(brain.bits, brain_is_nan ? half | 0x40U : half) << n;
        if ((n & 0x7FFFU) <= 0x7C00U) { // no NaN
            Float16 ieee{};
            from_float(to_float(Float16{half}), ieee);
            ASSERT_EQ(ieee.bits, half) << n;
        }
    }
}

/// Every upper half of a float, with lower halves on, just below and just above every point where a rounding decides:
/// multiples of 2^11 cover the ties of both formats, of bfloat16 at bit 15 and of float16 at bit 12.
template <class F>
void for_rounding_cases(F f)
{
    for (std::uint32_t upper = 0; upper <= 0xFFFFU; ++upper) {
        for (std::uint32_t lower = 0; lower <= 0xFFFFU; lower += 0x800U) {
            const std::uint32_t bits = upper << 16 | lower;
            f(bits);
            f(bits + 1);
            f(bits - 1);
        }
    }
}

TEST(Conversions, RoundingToBFloat16IsThatOfTheIoLayer)
{
    for_rounding_cases([](std::uint32_t bits) {
        const float x = float_of(bits);
        BFloat16 rounded{};
        from_float(x, rounded);
        ASSERT_EQ(rounded.bits, io::bfloat16_from(x)) << std::hex << bits;
    });
}

TEST(Conversions, RoundingToFloat16IsThatOfTheIoLayer)
{
    for_rounding_cases([](std::uint32_t bits) {
        const float x = float_of(bits);
        Float16 rounded{};
        from_float(x, rounded);
        if ((bits & ~sign_bit) > infinity_bits) { // NaNs: here one quiet NaN of either sign, there with a payload
            ASSERT_EQ(rounded.bits, (bits & sign_bit) >> 16 | 0x7E00U) << std::hex << bits;
        } else {
            ASSERT_EQ(rounded.bits, io::float16_from(x)) << std::hex << bits;
        }
    });
}

TEST(Conversions, EveryFloat8WidensAsInTheCoreLayerAndComesBackUnchanged)
{
    for (std::uint32_t n = 0; n <= 0xFFU; ++n) {
        const auto byte = static_cast<std::uint8_t>(n);
        const float value = to_float(Float8{byte});
        const float expected = float_from_float8_e4m3(byte);
        Float8 again{};
        from_float(value, again);
        ASSERT_EQ(again.bits, byte) << n;
        if ((n & 0x7FU) == 0x7FU) {
            ASSERT_TRUE(std::isnan(value) && std::isnan(expected));
            continue;
        }
        ASSERT_EQ(bits_of(value), bits_of(expected)) << n;
    }
}

TEST(Conversions, RoundingToFloat8IsThatOfTheCoreLayerUpToTheLargestNumber)
{
    for_rounding_cases([](std::uint32_t bits) {
        const float x = float_of(bits);
        Float8 rounded{};
        from_float(x, rounded);
        const double within = std::isnan(x) ? static_cast<double>(x)
                                            : std::clamp(static_cast<double>(x), -most_float8_e4m3, most_float8_e4m3);
        const std::uint8_t expected = float8_e4m3_from(within);
        if (std::isnan(x)) {
            ASSERT_EQ(rounded.bits & 0x7F, expected & 0x7F) << std::hex << bits;
        } else {
            ASSERT_EQ(rounded.bits, expected) << std::hex << bits;
        }
    });
}

TEST(Conversions, RoundingToInt8IsThatOfTheStandardLibraryUpToItsEnds)
{
    for_rounding_cases([](std::uint32_t bits) {
        const float x = float_of(bits);
        Int8 rounded{};
        from_float(x, rounded);
        const float expected = std::isnan(x) ? 0.0F : std::nearbyint(std::clamp(x, -127.0F, 127.0F));
        ASSERT_EQ(to_float(rounded), expected) << std::hex << bits;
    });
}

} // namespace
} // namespace flashomp::offload
