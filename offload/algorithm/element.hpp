// Reading and writing float32, bfloat16 and float16, and the 8 bits of a cache, as float, in plain C++ that vectorises
// on the host and compiles for the device: no intrinsics, no library calls.
#pragma once

#include "algorithm/params.hpp"

#include <cstdint>

#pragma omp declare target

namespace flashomp::offload {

struct BFloat16 {
    std::uint16_t bits;
};
struct Float16 {
    std::uint16_t bits;
};
struct Float8 { ///< float8_e4m3
    std::uint8_t bits;
};
struct Int8 {
    std::int8_t value;
};

FLASHOMP_INLINE std::uint32_t bits_of(float x)
{
    return __builtin_bit_cast(std::uint32_t, x);
}
FLASHOMP_INLINE float float_of(std::uint32_t bits)
{
    return __builtin_bit_cast(float, bits);
}

FLASHOMP_INLINE float to_float(float x)
{
    return x;
}

FLASHOMP_INLINE float to_float(BFloat16 x)
{
    return float_of(static_cast<std::uint32_t>(x.bits) << 16);
}

FLASHOMP_INLINE float to_float(Float16 x)
{
    // The half's exponent and mantissa, moved into a float's place, read as value · 2^-112; one exact multiply
    // rescales, denormals included. Inf and NaN (exponent 31) then need their exponent set to all ones.
    const std::uint32_t sign = static_cast<std::uint32_t>(x.bits & 0x8000U) << 16;
    const std::uint32_t magnitude = static_cast<std::uint32_t>(x.bits & 0x7FFFU) << 13;
    const float scaled = float_of(magnitude) * 0x1p112F;
    const std::uint32_t special = magnitude >= 0x0F800000U ? 0x7F800000U : 0U;
    return float_of(sign | bits_of(scaled) | special);
}

FLASHOMP_INLINE float to_float(Float8 x)
{
    // As of a half: exact, denormals included. There is no infinity, and one NaN of each sign.
    const std::uint32_t sign = static_cast<std::uint32_t>(x.bits & 0x80U) << 24;
    const std::uint32_t magnitude = static_cast<std::uint32_t>(x.bits & 0x7FU) << 20;
    const float scaled = float_of(magnitude) * 0x1p120F;
    const std::uint32_t special = magnitude == 0x07F00000U ? 0x7FC00000U : 0U;
    return float_of(sign | bits_of(scaled) | special);
}

FLASHOMP_INLINE float to_float(Int8 x)
{
    return static_cast<float>(x.value);
}

FLASHOMP_INLINE void from_float(float x, float& out)
{
    out = x;
}

FLASHOMP_INLINE void from_float(float x, BFloat16& out)
{
    // Round to nearest even; a NaN keeps its top bits and is made quiet so that rounding cannot turn it to inf.
    const std::uint32_t bits = bits_of(x);
    const std::uint32_t rounded = (bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16;
    const bool is_nan = (bits & 0x7FFFFFFFU) > 0x7F800000U;
    out.bits = static_cast<std::uint16_t>(is_nan ? (bits >> 16) | 0x40U : rounded);
}

FLASHOMP_INLINE void from_float(float x, Float16& out)
{
    const std::uint32_t bits = bits_of(x);
    const std::uint32_t sign = (bits >> 16) & 0x8000U;
    const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
    // Normal halves: rebias the exponent, round the 13 dropped bits to nearest even.
    const std::uint32_t normal = (magnitude - 0x38000000U + 0xFFFU + ((magnitude >> 13) & 1U)) >> 13;
    // Denormal halves: adding 0.5 lets the float adder do the shift and the rounding.
    const std::uint32_t denormal = bits_of(float_of(magnitude) + 0.5F) - 0x3F000000U;
    const std::uint32_t finite = magnitude < 0x38800000U ? denormal : normal;
    const std::uint32_t special = magnitude > 0x7F800000U ? 0x7E00U : 0x7C00U;
    out.bits = static_cast<std::uint16_t>(sign | (magnitude >= 0x477FF000U ? special : finite));
}

/// To nearest, ties to even; what is beyond 448 becomes 448, and a NaN stays one.
FLASHOMP_INLINE void from_float(float x, Float8& out)
{
    const std::uint32_t bits = bits_of(x);
    const std::uint32_t sign = (bits >> 24) & 0x80U;
    const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
    const std::uint32_t normal = (magnitude - 0x3C000000U + 0x7FFFFU + ((magnitude >> 20) & 1U)) >> 20;
    // Denormals are multiples of 2^-9, the last bit of 2^14: the float adder does the shift and the rounding.
    const std::uint32_t denormal = bits_of(float_of(magnitude) + 0x1p14F) - bits_of(0x1p14F);
    const std::uint32_t finite = magnitude < 0x3C800000U ? denormal : (magnitude < 0x43E00000U ? normal : 0x7EU);
    out.bits = static_cast<std::uint8_t>(sign | (magnitude > 0x7F800000U ? 0x7FU : finite));
}

/// To nearest, ties to even; what is beyond -127 or 127 becomes that, as -128 has no counterpart, and a NaN 0.
FLASHOMP_INLINE void from_float(float x, Int8& out)
{
    const float above = x > -127.0F ? x : (x <= -127.0F ? -127.0F : 0.0F);
    const float within = above < 127.0F ? above : 127.0F;
    // The last bit of 2^23 + 2^22 is 1: the float adder does the rounding.
    const float rounded = within + 0x1.8p23F;
    out.value = static_cast<std::int8_t>(static_cast<int>(bits_of(rounded)) - static_cast<int>(bits_of(0x1.8p23F)));
}

/// Element `index` of an array of a run-time type; for code outside the inner loops.
FLASHOMP_INLINE float read_element(const void* data, Element element, std::int64_t index)
{
    switch (element) {
    case Element::bfloat16:
        return to_float(static_cast<const BFloat16*>(data)[index]);
    case Element::float16:
        return to_float(static_cast<const Float16*>(data)[index]);
    case Element::float32:
        break;
    }
    return static_cast<const float*>(data)[index];
}

FLASHOMP_INLINE void write_element(void* data, Element element, std::int64_t index, float value)
{
    switch (element) {
    case Element::bfloat16:
        return from_float(value, static_cast<BFloat16*>(data)[index]);
    case Element::float16:
        return from_float(value, static_cast<Float16*>(data)[index]);
    case Element::float32:
        break;
    }
    static_cast<float*>(data)[index] = value;
}

/// The sum of products of row r of `a` and of `b`.
FLASHOMP_INLINE float dot_product(const Rows& a, const Rows& b, int r)
{
    float sum = 0.0F;
    for (int x = 0; x < a.depth; ++x) {
        sum += read_element(a.data, a.element, a.offset + r * a.stride + x) *
               read_element(b.data, b.element, b.offset + r * b.stride + x);
    }
    return sum;
}

} // namespace flashomp::offload

#pragma omp end declare target
