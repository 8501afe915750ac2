// Hopper's warpgroup products: wgmma (PTX ISA, "Asynchronous Warpgroup Level Matrix Multiply-Accumulate Operations"),
// left operands in registers or team memory, right ones in team memory. They need .target sm_90a, which g++ cannot
// write: cmake/hopper/as does.
//
// An asm statement takes 30 operands; the accumulators of a product are up to 128. So they are registers that only PTX
// knows, d<group>_<i>. wgmma wants each group in a row; g++'s own registers would be copied there and back.
#pragma once

#include "nvidia/ptx.hpp"

#pragma omp declare target

namespace flashomp::offload::ptx {

/// What wgmma is told of a matrix in shared memory, in panels of 64 16-bit columns with a 128-byte swizzle ("Matrix
/// Descriptor Format"): its panels are `panel_bytes` apart, its eights of rows 1024 (descriptor_high). Adding b/16
/// moves it by b bytes.
FLASHOMP_INLINE std::uint32_t matrix_descriptor(std::uint32_t shared, std::uint32_t panel_bytes)
{
    return panel_bytes / 16 << 16 | shared / 16;
}

/// A shared address without the number that a cluster's second team has in its upper byte, where a descriptor has the
/// panels' distance.
FLASHOMP_INLINE std::uint32_t without_rank(std::uint32_t shared)
{
    return shared & 0xffffffU;
}
constexpr std::uint32_t descriptor_high = 1U << 30 | 1024 / 16;

/// shfl.sync.idx: lane 0's x, which is every lane's; after it ptxas knows, and computes further descriptors in uniform
/// registers.
FLASHOMP_INLINE std::uint32_t uniform(std::uint32_t x)
{
    std::uint32_t y = x;
    if (is_nvptx()) {
        asm volatile("shfl.sync.idx.b32 %0, %1, 0, 31, 0xffffffff;" : "=r"(y) : "r"(x));
    }
    return y;
}

/// Registers of a group for as long as the function runs; a product or clear_accumulator() gives each its first value.
template <int registers>
FLASHOMP_INLINE void declare_accumulators(int group)
{
    if (is_nvptx()) {
        asm volatile(".reg .f32 d%0_<%1>;" ::"n"(group), "n"(registers));
    }
}

template <int i>
FLASHOMP_INLINE void clear_accumulator(int group)
{
    if (is_nvptx()) {
        asm volatile("mov.b32 d%0_%1, 0;" ::"n"(group), "n"(i));
    }
}

template <int i>
FLASHOMP_INLINE void scale_accumulator(int group, float by)
{
    if (is_nvptx()) {
        asm volatile("{ .reg .f32 b; mov.b32 b, %0; mul.f32 d%1_%2, d%1_%2, b; }" ::"r"(by), "n"(group), "n"(i));
    }
}

template <int i>
FLASHOMP_INLINE float get_accumulator(int group)
{
    float x = 0.0F;
    if (is_nvptx()) {
        asm volatile("mov.b32 %0, d%1_%2;" : "=r"(x) : "n"(group), "n"(i));
    }
    return x;
}

/// A second use of a left operand that a loop does not change, in a store that never happens (no shared address is that
/// large). Of one whose only use is a wgmma in the loop, ptxas 13.0 gives the registers away after its first round.
FLASHOMP_INLINE void keep(const Four& a, std::uint32_t address)
{
    if (is_nvptx()) {
        asm volatile(
            "{ .reg .pred never; setp.eq.u32 never, %1, 0xffffffff; @never st.shared.u32 [%1], %0; }" ::"r"(a.x[0]),
            "r"(address));
    }
}

/// wgmma.fence: registers set so far may be used by what follows.
FLASHOMP_INLINE void fence_products()
{
    if (is_nvptx()) {
        asm volatile("wgmma.fence.sync.aligned;" ::);
    }
}

/// wgmma.commit_group: the products issued since the last are a group.
FLASHOMP_INLINE void commit_products()
{
    if (is_nvptx()) {
        asm volatile("wgmma.commit_group.sync.aligned;" ::);
    }
}

/// wgmma.wait_group: all groups but the last `pending` have been done.
template <int pending>
FLASHOMP_INLINE void wait_products()
{
    if (is_nvptx()) {
        asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending));
    }
}

// clang-format off
// Accumulators by name: those of group %0, in tens and by hand for the rest.
#define FLASHOMP_D2(a, b) "d%0_" #a ",d%0_" #b
#define FLASHOMP_D10(t) FLASHOMP_D2(t##0, t##1) "," FLASHOMP_D2(t##2, t##3) "," FLASHOMP_D2(t##4, t##5) "," \
                        FLASHOMP_D2(t##6, t##7) "," FLASHOMP_D2(t##8, t##9)
#define FLASHOMP_D8 FLASHOMP_D2(0, 1) "," FLASHOMP_D2(2, 3) "," FLASHOMP_D2(4, 5) "," FLASHOMP_D2(6, 7)
#define FLASHOMP_D16 FLASHOMP_D10() "," FLASHOMP_D2(10, 11) "," FLASHOMP_D2(12, 13) "," FLASHOMP_D2(14, 15)
#define FLASHOMP_D24 FLASHOMP_D10() "," FLASHOMP_D10(1) "," FLASHOMP_D2(20, 21) "," FLASHOMP_D2(22, 23)
#define FLASHOMP_D32 FLASHOMP_D10() "," FLASHOMP_D10(1) "," FLASHOMP_D10(2) "," FLASHOMP_D2(30, 31)
#define FLASHOMP_D64 FLASHOMP_D10() "," FLASHOMP_D10(1) "," FLASHOMP_D10(2) "," FLASHOMP_D10(3) "," FLASHOMP_D10(4) \
                     "," FLASHOMP_D10(5) "," FLASHOMP_D2(60, 61) "," FLASHOMP_D2(62, 63)
#define FLASHOMP_D128 FLASHOMP_D10() "," FLASHOMP_D10(1) "," FLASHOMP_D10(2) "," FLASHOMP_D10(3) "," FLASHOMP_D10(4) \
                     "," FLASHOMP_D10(5) "," FLASHOMP_D10(6) "," FLASHOMP_D10(7) "," FLASHOMP_D10(8) ","                \
                     FLASHOMP_D10(9) "," FLASHOMP_D10(10) "," FLASHOMP_D10(11) "," FLASHOMP_D2(120, 121) ","           \
                     FLASHOMP_D2(122, 123) "," FLASHOMP_D2(124, 125) "," FLASHOMP_D2(126, 127)
#define FLASHOMP_WGMMA(columns, type, accumulators)                                                                    \
    " .reg .b64 b; mov.b64 b, {%1, %2}; .reg .pred adds; setp.ne.b32 adds, %3, 0;"                                     \
    " wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32." type "." type " {" accumulators "}, "
#define FLASHOMP_WGMMA_REGISTERS(columns, type, accumulators)                                                          \
    asm volatile("{ .reg .b32 a<4>; mov.b32 a0, %5; mov.b32 a1, %6; mov.b32 a2, %7; mov.b32 a3, %8;"                   \
                 FLASHOMP_WGMMA(columns, type, accumulators) "{a0,a1,a2,a3}, b, adds, 1, 1, %4; }" ::"n"(group),       \
                 "r"(right), "n"(descriptor_high), "n"(adds), "n"(transposed), "r"(a.x[0]), "r"(a.x[1]), "r"(a.x[2]),  \
                 "r"(a.x[3]))
#define FLASHOMP_WGMMA_MEMORY(columns, type, accumulators)                                                             \
    asm volatile("{ .reg .b64 a; mov.b64 a, {%5, %2};"                                                                 \
                 FLASHOMP_WGMMA(columns, type, accumulators) "a, b, adds, 1, 1, %6, %4; }" ::"n"(group), "r"(right),   \
                 "n"(descriptor_high), "n"(adds), "n"(transposed), "r"(left), "n"(left_transposed))
#define FLASHOMP_WGMMA_OF(where, type)                                                                                 \
    if constexpr (columns == 16) {                                                                                     \
        FLASHOMP_WGMMA_##where(16, type, FLASHOMP_D8);                                                                 \
    } else if constexpr (columns == 32) {                                                                              \
        FLASHOMP_WGMMA_##where(32, type, FLASHOMP_D16);                                                                \
    } else if constexpr (columns == 48) {                                                                              \
        FLASHOMP_WGMMA_##where(48, type, FLASHOMP_D24);                                                                \
    } else if constexpr (columns == 64) {                                                                              \
        FLASHOMP_WGMMA_##where(64, type, FLASHOMP_D32);                                                                \
    } else if constexpr (columns == 128) {                                                                             \
        FLASHOMP_WGMMA_##where(128, type, FLASHOMP_D64);                                                               \
    } else {                                                                                                           \
        FLASHOMP_WGMMA_##where(256, type, FLASHOMP_D128);                                                              \
    }
// clang-format on

constexpr bool has_product(int columns)
{
    return columns == 16 || columns == 32 || columns == 48 || columns == 64 || columns == 128 || columns == 256;
}

/// wgmma.mma_async.m64nNk16: d = (adds ? d : 0) + a·b for 64 rows. Transposed: b's rows lie along the inner dimension
/// instead of its columns.
template <bool is_bfloat16, int columns, bool adds, bool transposed>
FLASHOMP_INLINE void multiply_add(int group, const Four& a, std::uint32_t right)
{
    static_assert(has_product(columns));
    if (is_nvptx()) {
        if constexpr (is_bfloat16) {
            FLASHOMP_WGMMA_OF(REGISTERS, "bf16")
        } else {
            FLASHOMP_WGMMA_OF(REGISTERS, "f16")
        }
    }
}

/// The same with a left operand in shared memory, whose rows lie along the inner dimension, or transposed its columns.
template <bool is_bfloat16, int columns, bool adds, bool transposed, bool left_transposed = false>
FLASHOMP_INLINE void multiply_add(int group, std::uint32_t left, std::uint32_t right)
{
    static_assert(has_product(columns));
    if (is_nvptx()) {
        if constexpr (is_bfloat16) {
            FLASHOMP_WGMMA_OF(MEMORY, "bf16")
        } else {
            FLASHOMP_WGMMA_OF(MEMORY, "f16")
        }
    }
}

#undef FLASHOMP_WGMMA_OF
#undef FLASHOMP_WGMMA_MEMORY
#undef FLASHOMP_WGMMA_REGISTERS
#undef FLASHOMP_WGMMA
#undef FLASHOMP_D128
#undef FLASHOMP_D64
#undef FLASHOMP_D32
#undef FLASHOMP_D24
#undef FLASHOMP_D16
#undef FLASHOMP_D10
#undef FLASHOMP_D8
#undef FLASHOMP_D2

} // namespace flashomp::offload::ptx

#pragma omp end declare target
