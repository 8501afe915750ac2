// Elementary functions as short polynomials: one definition that the host compiler vectorises and the device
// compiler inlines. libm's versions do neither under the flags we allow (no -ffast-math).
#pragma once

#include "algorithm/element.hpp"
#include "algorithm/team_memory.hpp"

#pragma omp declare target

namespace flashomp::offload {

inline constexpr float log2_e = 1.44269504088896340736F;
inline constexpr float ln_2 = 0.69314718055994530942F;
inline constexpr float infinity = __builtin_huge_valf();

/// 2^f for f in [-1/2, 1/2], by degree-6 minimax coefficients (Cephes exp2f). Lanes::Vector: float, or a vector of
/// them, named in this way because g++ takes a vector type for its element where that is the template's argument.
template <class Lanes>
FLASHOMP_INLINE typename Lanes::Vector exp2_polynomial(typename Lanes::Vector f)
{
    typename Lanes::Vector y = f * 1.535336188319500e-4F + 1.339887440266574e-3F;
    y = y * f + 9.618437357674640e-3F;
    y = y * f + 5.550332471162809e-2F;
    y = y * f + 2.402264791363012e-1F;
    y = y * f + 6.931472028550421e-1F;
    return y * f + 1.0F;
}

/// For exp2_polynomial() of a float.
struct OneLane {
    using Vector = float;
};

/// 2^x for x <= 127 with relative error below 2.5e-7 (tests/unit/math_test.cpp); 0 for x < -125, so that a
/// masked score (-inf) becomes exactly 0 and no result is denormal.
FLASHOMP_INLINE float exp2_fast(float x)
{
    const float clamped = x < -125.0F ? -125.0F : x; // -inf becomes a number (inf - inf is NaN); a NaN stays one
    // Adding 1.5·2^23 and a float's bias leaves round(x) + 127 in the low mantissa bits.
    constexpr float shift = 12582912.0F + 127.0F;
    const float shifted = clamped + shift;
    const float f = clamped - (shifted - shift); // in [-1/2, 1/2], exact
    // A product, which keeps a NaN. Adding the exponent to its bits does not: a GPU's NaN became the largest float.
    const float result = exp2_polynomial<OneLane>(f) * float_of(bits_of(shifted) << 23);
    return x < -125.0F ? 0.0F : result;
}

/// e^(a - b): the difference first, exact where a and b are close, then the change of base.
FLASHOMP_INLINE float exp_difference(float a, float b)
{
    return exp2_fast((a - b) * log2_e);
}

/// x·y + z, rounded once wherever that is one instruction. Compilers may fuse by themselves, but need not do so at
/// every place: what must have the same bits at two of them says so.
FLASHOMP_INLINE float fused(float x, float y, float z)
{
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA) || defined(__CUDA_ARCH__)
    return __builtin_fmaf(x, y, z);
#else
    return is_nvptx() ? __builtin_fmaf(x, y, z) : x * y + z;
#endif
}

/// x / y, at most one unit in the last place off; y neither 0 nor subnormal nor infinite. On a GPU a division is a
/// function call where those must be right.
FLASHOMP_INLINE float quotient(float x, float y)
{
#if defined(__GNUC__) && !defined(__clang__)
    if (is_nvptx()) {
        float r = 0.0F;
        asm("{ .reg .f32 a; mov.b32 a, %1; rcp.approx.ftz.f32 a, a; mov.b32 %0, a; }"
            : "=" FLASHOMP_ASM_FLOAT(r)
            : FLASHOMP_ASM_FLOAT(y));
        const float q = x * r;
        return __builtin_fmaf(__builtin_fmaf(-q, y, x), r, q);
    }
#endif
    return x / y;
}

/// log2(x) for finite x >= 2^-126, absolute error below 3e-7 for the mantissa part.
FLASHOMP_INLINE float log2_fast(float x)
{
    // x = 2^e · m with m in [sqrt(1/2), sqrt(2)); log2(m) = 2/ln2 · atanh(z), z = (m - 1)/(m + 1), |z| < 0.172.
    const std::uint32_t bits = bits_of(x);
    const std::uint32_t e = (bits - 0x3F3504F3U) & 0xFF800000U;
    const float m = float_of(bits - e);
    const float z = quotient(m - 1.0F, m + 1.0F);
    const float z2 = z * z;
    float y = 2.0F / 9.0F;
    y = y * z2 + 2.0F / 7.0F;
    y = y * z2 + 2.0F / 5.0F;
    y = y * z2 + 2.0F / 3.0F;
    y = y * z2 + 2.0F;
    return static_cast<float>(static_cast<std::int32_t>(e) >> 23) + y * z * log2_e;
}

/// tanh(x), relative error below 5e-7.
FLASHOMP_INLINE float tanh_fast(float x)
{
    const float a = x < 0.0F ? -x : x;
    // Near zero 1 - 2/(e^2x + 1) cancels; an odd polynomial does not (Cephes tanhf).
    const float z = x * x;
    float y = -5.70498872745e-3F;
    y = y * z + 2.06390887954e-2F;
    y = y * z - 5.37397155531e-2F;
    y = y * z + 1.33314422036e-1F;
    y = y * z - 3.33332819422e-1F;
    const float small = y * z * x + x;
    const float bounded = a > 20.0F ? 20.0F : a; // tanh(20) rounds to 1; keeps exp2 in range
    const float large = 1.0F - quotient(2.0F, exp2_fast(2.0F * log2_e * bounded) + 1.0F);
    return a < 0.625F ? small : (x < 0.0F ? -large : large);
}

} // namespace flashomp::offload

#pragma omp end declare target
