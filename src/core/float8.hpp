// float8_e4m3: 1 sign, 4 exponent and 3 fraction bits, exponent bias 7, no infinities, the largest number 448 (OCP
// 8-bit Floating Point Specification, "E4M3"; PyTorch's float8_e4m3fn). On the bits, as io/convert.hpp.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>

namespace flashomp {

inline constexpr double most_float8_e4m3 = 448.0;

[[nodiscard]] constexpr float float_from_float8_e4m3(std::uint8_t bits)
{
    const int exponent = bits >> 3 & 0xF;
    const int fraction = bits & 0x7;
    if (exponent == 0xF && fraction == 0x7) {
        return std::numeric_limits<float>::quiet_NaN();
    }
    const int steps = exponent == 0 ? fraction : 8 + fraction; // of 2^(exponent - 10), of denormals 2^-9
    const auto step = std::bit_cast<float>(static_cast<std::uint32_t>((exponent == 0 ? 1 : exponent) - 10 + 127) << 23);
    return (bits >> 7 != 0 ? -step : step) * static_cast<float>(steps);
}

/// `value` rounded once, to nearest with ties to even. What is beyond 448 after that, there is no number for: NaN, as
/// what is no number itself.
[[nodiscard]] constexpr std::uint8_t float8_e4m3_from(double value)
{
    constexpr int fraction_bits = 52;
    constexpr std::uint64_t implicit_bit = std::uint64_t{1} << fraction_bits;
    constexpr std::uint8_t nan = 0x7F;
    constexpr int least_exponent = -6;
    const auto bits = std::bit_cast<std::uint64_t>(value);
    const auto sign = static_cast<std::uint8_t>(bits >> 63 << 7);
    const double magnitude = value < 0 ? -value : value;
    constexpr double end = 464.0; // half-way to what would be next, 480, and 448 is even
    if (!(magnitude <= end)) {
        return static_cast<std::uint8_t>(sign | nan);
    }
    const int exponent = static_cast<int>(bits >> fraction_bits & 0x7FF) - 1023;
    const int kept = exponent < least_exponent ? least_exponent : exponent; // steps are of 2^(kept - 3)
    const int dropped_bits = fraction_bits - 3 + kept - exponent;
    if (dropped_bits > fraction_bits + 1) { // less than half of the smallest denormal; denormal doubles too
        return sign;
    }
    const std::uint64_t significand = implicit_bit | (bits & (implicit_bit - 1));
    const std::uint64_t almost_half = (std::uint64_t{1} << (dropped_bits - 1)) - 1;
    const std::uint64_t odd = significand >> dropped_bits & 1;
    // Eight steps, or sixteen after a carry, begin the next exponent: they add up to its code.
    const std::uint64_t steps = (significand + almost_half + odd) >> dropped_bits;
    return static_cast<std::uint8_t>(sign | ((static_cast<std::uint64_t>(kept - least_exponent) << 3) + steps));
}

} // namespace flashomp
