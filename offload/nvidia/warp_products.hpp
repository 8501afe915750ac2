// Products of a warp, mma.sync, and what depends on the type of their operands: see ptx.hpp for how they are written.
#pragma once

#include "nvidia/ptx.hpp"

#pragma omp declare target

// c += a·b with a in four registers, b in two and c in four floats.
#define FLASHOMP_MMA(shape_and_types, c, a, b0, b1)                                                                    \
    float d[4] = {};                                                                                                   \
    if (is_nvptx()) {                                                                                                  \
        asm("{ .reg .f32 c<4>; .reg .b32 a<4>, b<2>;"                                                                  \
            " mov.b32 c0, %10; mov.b32 c1, %11; mov.b32 c2, %12; mov.b32 c3, %13;"                                     \
            " mov.b32 a0, %4; mov.b32 a1, %5; mov.b32 a2, %6; mov.b32 a3, %7; mov.b32 b0, %8; mov.b32 b1, %9;"         \
            " mma.sync.aligned." shape_and_types " {c0, c1, c2, c3}, {a0, a1, a2, a3}, {b0, b1}, {c0, c1, c2, c3};"    \
            " mov.b32 %0, c0; mov.b32 %1, c1; mov.b32 %2, c2; mov.b32 %3, c3; }"                                       \
            : "=" FLASHOMP_ASM_FLOAT(d[0]), "=" FLASHOMP_ASM_FLOAT(d[1]), "=" FLASHOMP_ASM_FLOAT(d[2]),                \
              "=" FLASHOMP_ASM_FLOAT(d[3])                                                                             \
            : "r"(a.x[0]), "r"(a.x[1]), "r"(a.x[2]), "r"(a.x[3]), "r"(b0), "r"(b1), FLASHOMP_ASM_FLOAT(c[0]),          \
              FLASHOMP_ASM_FLOAT(c[1]), FLASHOMP_ASM_FLOAT(c[2]), FLASHOMP_ASM_FLOAT(c[3]));                           \
    }                                                                                                                  \
    c[0] = d[0];                                                                                                       \
    c[1] = d[1];                                                                                                       \
    c[2] = d[2];                                                                                                       \
    c[3] = d[3]

namespace flashomp::offload::ptx {

struct BFloat16Math {
    using Stored = std::uint16_t; ///< an element in memory
    enum : int { is_bfloat16 = 1 };

    /// cvt.rn.bf16x2.f32: two floats to one register, the first in the low half.
    static FLASHOMP_INLINE std::uint32_t pack(float low, float high)
    {
        std::uint32_t both = 0;
        if (is_nvptx()) {
            asm("{ .reg .f32 l, h; .reg .b32 d; mov.b32 l, %1; mov.b32 h, %2; cvt.rn.bf16x2.f32 d, h, l; mov.b32 %0, "
                "d; }"
                : "=r"(both)
                : FLASHOMP_ASM_FLOAT(low), FLASHOMP_ASM_FLOAT(high));
        }
        return both;
    }

    static FLASHOMP_INLINE float low(std::uint32_t both) { return __builtin_bit_cast(float, both << 16); }
    static FLASHOMP_INLINE float high(std::uint32_t both) { return __builtin_bit_cast(float, both & 0xFFFF0000U); }
    static FLASHOMP_INLINE float value(Stored x) { return low(x); }

    /// mma.sync.m16n8k16: c + a·b with a 16x16, b 16x8, c 16x8 in float32.
    static FLASHOMP_INLINE void multiply_add(float (&c)[4], const Four& a, std::uint32_t b0, std::uint32_t b1)
    {
        FLASHOMP_MMA("m16n8k16.row.col.f32.bf16.bf16.f32", c, a, b0, b1);
    }
};

struct Float16Math {
    using Stored = std::uint16_t;
    enum : int { is_bfloat16 = 0 };

    /// cvt.rn.f16x2.f32
    static FLASHOMP_INLINE std::uint32_t pack(float low, float high)
    {
        std::uint32_t both = 0;
        if (is_nvptx()) {
            asm("{ .reg .f32 l, h; .reg .b32 d; mov.b32 l, %1; mov.b32 h, %2; cvt.rn.f16x2.f32 d, h, l; mov.b32 %0, d; "
                "}"
                : "=r"(both)
                : FLASHOMP_ASM_FLOAT(low), FLASHOMP_ASM_FLOAT(high));
        }
        return both;
    }

    /// cvt.f32.f16
    static FLASHOMP_INLINE float low(std::uint32_t both)
    {
        float x = 0.0F;
        if (is_nvptx()) {
            asm("{ .reg .b16 l, h; .reg .f32 f; mov.b32 {l, h}, %1; cvt.f32.f16 f, l; mov.b32 %0, f; }"
                : "=" FLASHOMP_ASM_FLOAT(x)
                : "r"(both));
        }
        return x;
    }
    static FLASHOMP_INLINE float high(std::uint32_t both) { return low(both >> 16); }
    static FLASHOMP_INLINE float value(Stored x) { return low(x); }

    static FLASHOMP_INLINE void multiply_add(float (&c)[4], const Four& a, std::uint32_t b0, std::uint32_t b1)
    {
        FLASHOMP_MMA("m16n8k16.row.col.f32.f16.f16.f32", c, a, b0, b1);
    }
};

/// float32 as sums of two TF32 numbers of 11 bits each: x = high + low, but for the last of x's 24 bits in half of all
/// cases. Of the products of two such sums, low·low is below float32's own rounding.
struct Tf32Math {
    using Stored = float;

    struct Halves {
        std::uint32_t high, low;
    };

    /// high is x rounded to TF32, in integers, whose throughput is known to be better than cvt.rna.tf32's on some GPUs;
    /// the difference is exact, and mma ignores the last 13 bits of what it is given.
    static FLASHOMP_INLINE Halves split(float x)
    {
        const std::uint32_t high = (__builtin_bit_cast(std::uint32_t, x) + 0x1000U) & 0xFFFFE000U;
        return {high, __builtin_bit_cast(std::uint32_t, x - __builtin_bit_cast(float, high))};
    }

    static FLASHOMP_INLINE float value(Stored x) { return x; }

    /// mma.sync.m16n8k8: c + a·b with a 16x8, b 8x8, c 16x8 in float32.
    static FLASHOMP_INLINE void multiply_add(float (&c)[4], const Four& a, std::uint32_t b0, std::uint32_t b1)
    {
        FLASHOMP_MMA("m16n8k8.row.col.f32.tf32.tf32.f32", c, a, b0, b1);
    }
};

} // namespace flashomp::offload::ptx

#undef FLASHOMP_MMA

#pragma omp end declare target
