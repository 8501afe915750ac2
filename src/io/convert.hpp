// Scalar conversions between the 16-bit floating-point formats and float or double, on the bits: the same on every
// compiler, whatever the rounding and flush-to-zero modes of the processor are.
//
// float16 is IEEE 754 binary16 (5 exponent bits, 10 fraction bits); bfloat16 is the upper half of an IEEE 754
// binary32 (8 and 7).
#pragma once

#include <bit>
#include <cstdint>

namespace flashomp::io {

/// `value` rounded once, to nearest with ties to even, to a sign, `ExponentBits` and `FractionBits` (16 bits in all).
/// Too large a value becomes an infinity, too small a one a denormal or a signed zero. A NaN stays a (quiet) NaN and
/// keeps its sign and the upper bits of its payload.
template <int ExponentBits, int FractionBits>
[[nodiscard]] constexpr std::uint16_t rounded_to_16_bits(double value)
{
    static_assert(1 + ExponentBits + FractionBits == 16);
    constexpr int double_bias = 1023;
    constexpr int double_fraction_bits = 52;
    constexpr std::uint64_t implicit_bit = std::uint64_t{1} << double_fraction_bits;
    constexpr std::uint64_t exponent_mask = 0x7ff;
    constexpr int bias = (1 << (ExponentBits - 1)) - 1;
    constexpr int special_exponent = (1 << ExponentBits) - 1; // infinities and NaNs
    constexpr std::uint64_t infinity = std::uint64_t{special_exponent} << FractionBits;
    constexpr std::uint64_t quiet_bit = std::uint64_t{1} << (FractionBits - 1);

    const auto bits = std::bit_cast<std::uint64_t>(value);
    const std::uint64_t sign = (bits >> 48) & 0x8000;
    const std::uint64_t fraction = bits & (implicit_bit - 1);
    const std::uint64_t double_exponent = (bits >> double_fraction_bits) & exponent_mask;
    const int exponent = static_cast<int>(double_exponent) - double_bias + bias;
    int dropped_bits = double_fraction_bits - FractionBits;

    if (double_exponent == exponent_mask) {
        const std::uint64_t payload = fraction != 0 ? (fraction >> dropped_bits) | quiet_bit : 0;
        return static_cast<std::uint16_t>(sign | infinity | payload);
    }
    if (exponent >= special_exponent) {
        return static_cast<std::uint16_t>(sign | infinity);
    }
    std::uint64_t magnitude = 0;
    if (exponent > 0) {
        magnitude = (static_cast<std::uint64_t>(exponent) << double_fraction_bits) | fraction;
    } else {
        magnitude = implicit_bit | fraction; // denormal: the leading one is spelled out and moves right
        dropped_bits += 1 - exponent;
        if (dropped_bits > double_fraction_bits + 1) { // less than half of the smallest denormal
            return static_cast<std::uint16_t>(sign);
        }
    }
    // A carry out of the fraction is right too: it reaches the next power of two, or infinity.
    const std::uint64_t almost_half = (std::uint64_t{1} << (dropped_bits - 1)) - 1;
    const std::uint64_t odd = (magnitude >> dropped_bits) & 1;
    return static_cast<std::uint16_t>(sign | ((magnitude + almost_half + odd) >> dropped_bits));
}

/// The float16 nearest to `value` (a float argument widens exactly, so it too is rounded once).
[[nodiscard]] constexpr std::uint16_t float16_from(double value)
{
    return rounded_to_16_bits<5, 10>(value);
}

/// The bfloat16 nearest to `value` (a float argument widens exactly, so it too is rounded once).
[[nodiscard]] constexpr std::uint16_t bfloat16_from(double value)
{
    return rounded_to_16_bits<8, 7>(value);
}

/// The value of a bfloat16, exactly.
[[nodiscard]] constexpr float float_from_bfloat16(std::uint16_t bits)
{
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

/// The value of a float16, exactly.
[[nodiscard]] constexpr float float_from_float16(std::uint16_t bits)
{
    constexpr std::uint32_t exponent_shift = 127 - 15;
    const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000) << 16;
    const std::uint32_t exponent = (static_cast<std::uint32_t>(bits) >> 10) & 0x1f;
    const std::uint32_t fraction = bits & 0x3ff;
    if (exponent == 0x1f) { // infinity or NaN
        return std::bit_cast<float>(sign | 0x7f800000 | (fraction << 13));
    }
    if (exponent == 0) { // zero or denormal: a small integer times 2^-24, a normal float
        const float magnitude = static_cast<float>(fraction) * 0x1p-24F;
        return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(magnitude));
    }
    return std::bit_cast<float>(sign | ((exponent + exponent_shift) << 23) | (fraction << 13));
}

} // namespace flashomp::io
