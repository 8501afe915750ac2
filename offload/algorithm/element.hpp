// Reading and writing float32, bfloat16 and float16 as float, in plain C++ that vectorises on the host and
// compiles for the device: no intrinsics, no library calls.
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
