// Hopper's warpgroup products: wgmma (PTX ISA, "Asynchronous Warpgroup Level Matrix Multiply-Accumulate Operations").
//
// Four warps multiply 64 rows by a matrix in shared memory and go on at once; wait_products() says when the
// accumulators are there. They have the layout of mma.m16n8k16: with g = lane / 4 and t = lane % 4, a lane holds of
// each 8 columns those numbered 2t and 2t + 1, of rows g (elements 0, 1) and g + 8 (elements 2, 3) of its warp's 16.
#pragma once

#include <cstdint>

namespace flashomp::cuda {

/// A matrix in shared memory, in panels of 64 16-bit columns with a 128-byte swizzle (PTX ISA, "Matrix Descriptor
/// Format"): its panels are `panel_bytes` apart, which matters only where it is read transposed, its eights of rows
/// 1024. Adding b / 16 moves it by b bytes.
__device__ __forceinline__ std::uint64_t matrix_descriptor(std::uint32_t shared, std::uint32_t panel_bytes)
{
    constexpr std::uint64_t swizzle_128_bytes = std::uint64_t{1} << 62;
    constexpr std::uint64_t eight_rows = std::uint64_t{1024 / 16} << 32;
    return swizzle_128_bytes | eight_rows | std::uint64_t{panel_bytes / 16} << 16 | shared / 16;
}

/// wgmma.fence: registers set so far may be used by what follows.
__device__ __forceinline__ void fence_products()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

/// wgmma.commit_group: the products issued since the last are a group.
__device__ __forceinline__ void commit_products()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/// wgmma.wait_group: all groups but the last `pending` have been done.
template <int pending>
__device__ __forceinline__ void wait_products()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}

/// Keeps the compiler from reading or writing these registers before this point: it takes a product for done as soon as
/// it is issued.
template <int n>
__device__ __forceinline__ void pin(float (&registers)[n])
{
#pragma unroll
    for (int i = 0; i < n; ++i) {
        asm volatile("" : "+f"(registers[i])::"memory");
    }
}

/// Keeps what x, a sum of probabilities, depends on ahead of the wait that follows: the assembler would move it behind,
/// where the products that it could run beside have ended. (A sleep of no time, for an x that does not occur.)
__device__ __forceinline__ void compute_now(float x)
{
    asm volatile("{ .reg .pred never; setp.lt.f32 never, %0, 0f00000000; @never nanosleep.u32 0; }" ::"f"(x)
                 : "memory");
}

// clang-format off
// The registers of an accumulator, %0 and so on, in tens and by hand for the rest; and the same as operands.
#define FLASHOMP_T(t) "%" #t "0,%" #t "1,%" #t "2,%" #t "3,%" #t "4,%" #t "5,%" #t "6,%" #t "7,%" #t "8,%" #t "9"
#define FLASHOMP_R20 FLASHOMP_T() "," FLASHOMP_T(1)
#define FLASHOMP_R40 FLASHOMP_R20 "," FLASHOMP_T(2) "," FLASHOMP_T(3)
#define FLASHOMP_R80 FLASHOMP_R40 "," FLASHOMP_T(4) "," FLASHOMP_T(5) "," FLASHOMP_T(6) "," FLASHOMP_T(7)
#define FLASHOMP_R32 FLASHOMP_R20 "," FLASHOMP_T(2) ",%30,%31"
#define FLASHOMP_R48 FLASHOMP_R40 ",%40,%41,%42,%43,%44,%45,%46,%47"
#define FLASHOMP_R64 FLASHOMP_R40 "," FLASHOMP_T(4) "," FLASHOMP_T(5) ",%60,%61,%62,%63"
#define FLASHOMP_R88 FLASHOMP_R80 ",%80,%81,%82,%83,%84,%85,%86,%87"
#define FLASHOMP_R96 FLASHOMP_R80 "," FLASHOMP_T(8) ",%90,%91,%92,%93,%94,%95"
#define FLASHOMP_R128 FLASHOMP_R80 "," FLASHOMP_T(8) "," FLASHOMP_T(9) "," FLASHOMP_T(10) "," FLASHOMP_T(11) \
                      ",%120,%121,%122,%123,%124,%125,%126,%127"
#define FLASHOMP_O8(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
                       "+f"(d[i + 6]), "+f"(d[i + 7])
#define FLASHOMP_O32 FLASHOMP_O8(0), FLASHOMP_O8(8), FLASHOMP_O8(16), FLASHOMP_O8(24)
#define FLASHOMP_O40 FLASHOMP_O32, FLASHOMP_O8(32)
#define FLASHOMP_O48 FLASHOMP_O40, FLASHOMP_O8(40)
#define FLASHOMP_O64 FLASHOMP_O48, FLASHOMP_O8(48), FLASHOMP_O8(56)
#define FLASHOMP_O80 FLASHOMP_O64, FLASHOMP_O8(64), FLASHOMP_O8(72)
#define FLASHOMP_O88 FLASHOMP_O80, FLASHOMP_O8(80)
#define FLASHOMP_O96 FLASHOMP_O88, FLASHOMP_O8(88)
#define FLASHOMP_O128 FLASHOMP_O96, FLASHOMP_O8(96), FLASHOMP_O8(104), FLASHOMP_O8(112), FLASHOMP_O8(120)

// n columns; r registers, and the numbers of the operands behind them.
#define FLASHOMP_SHARED(type, n, r, o0, o1, o2, o3, o4)                                                               \
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %" #o2 ", 0; wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type   \
                 "." type " {" FLASHOMP_R##r "}, %" #o0 ", %" #o1 ", p, 1, 1, %" #o3 ", %" #o4 "; }"                  \
                 : FLASHOMP_O##r : "l"(left), "l"(right), "r"(adds), "n"(left_transposed), "n"(right_transposed))
#define FLASHOMP_REGISTERS(type, n, r, o0, o1, o2, o3, o4, o5, o6)                                                    \
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %" #o5 ", 0; wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type   \
                 "." type " {" FLASHOMP_R##r "}, {%" #o0 ",%" #o1 ",%" #o2 ",%" #o3 "}, %" #o4 ", p, 1, 1, %" #o6     \
                 "; }" : FLASHOMP_O##r : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "l"(right),          \
                 "r"(adds), "n"(right_transposed))
// The same for e4m3, whose inner dimension always lies along the rows.
#define FLASHOMP_SHARED_8(n, r, o0, o1, o2)                                                                           \
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %" #o2 ", 0; wgmma.mma_async.sync.aligned.m64n" #n                   \
                 "k32.f32.e4m3.e4m3 {" FLASHOMP_R##r "}, %" #o0 ", %" #o1 ", p, 1, 1; }"                              \
                 : FLASHOMP_O##r : "l"(left), "l"(right), "r"(adds))
#define FLASHOMP_REGISTERS_8(n, r, o0, o1, o2, o3, o4, o5)                                                            \
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %" #o5 ", 0; wgmma.mma_async.sync.aligned.m64n" #n                   \
                 "k32.f32.e4m3.e4m3 {" FLASHOMP_R##r "}, {%" #o0 ",%" #o1 ",%" #o2 ",%" #o3 "}, %" #o4 ", p, 1, 1; }" \
                 : FLASHOMP_O##r : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "l"(right), "r"(adds))
#define FLASHOMP_SHARED_OF(type)                                                                                      \
    if constexpr (n == 64) { FLASHOMP_SHARED(type, 64, 32, 32, 33, 34, 35, 36); }                                     \
    else if constexpr (n == 80) { FLASHOMP_SHARED(type, 80, 40, 40, 41, 42, 43, 44); }                                \
    else if constexpr (n == 96) { FLASHOMP_SHARED(type, 96, 48, 48, 49, 50, 51, 52); }                                \
    else if constexpr (n == 128) { FLASHOMP_SHARED(type, 128, 64, 64, 65, 66, 67, 68); }                              \
    else if constexpr (n == 160) { FLASHOMP_SHARED(type, 160, 80, 80, 81, 82, 83, 84); }                              \
    else if constexpr (n == 176) { FLASHOMP_SHARED(type, 176, 88, 88, 89, 90, 91, 92); }                              \
    else if constexpr (n == 192) { FLASHOMP_SHARED(type, 192, 96, 96, 97, 98, 99, 100); }                             \
    else { static_assert(n == 256); FLASHOMP_SHARED(type, 256, 128, 128, 129, 130, 131, 132); }
#define FLASHOMP_REGISTERS_OF(type)                                                                                   \
    if constexpr (n == 64) { FLASHOMP_REGISTERS(type, 64, 32, 32, 33, 34, 35, 36, 37, 38); }                          \
    else if constexpr (n == 80) { FLASHOMP_REGISTERS(type, 80, 40, 40, 41, 42, 43, 44, 45, 46); }                     \
    else if constexpr (n == 96) { FLASHOMP_REGISTERS(type, 96, 48, 48, 49, 50, 51, 52, 53, 54); }                     \
    else if constexpr (n == 128) { FLASHOMP_REGISTERS(type, 128, 64, 64, 65, 66, 67, 68, 69, 70); }                   \
    else if constexpr (n == 192) { FLASHOMP_REGISTERS(type, 192, 96, 96, 97, 98, 99, 100, 101, 102); }                \
    else { static_assert(n == 256); FLASHOMP_REGISTERS(type, 256, 128, 128, 129, 130, 131, 132, 133, 134); }
// clang-format on

/// wgmma.mma_async.m64nNk16 (k32 in 8 bits): d = (adds ? d : 0) + left·right for 64 rows, both in shared memory.
/// Without `transposed` the inner dimension lies along the rows of each; with it, down the columns.
template <class Math, int n, bool left_transposed, bool right_transposed>
__device__ __forceinline__ void multiply_add(float (&d)[n / 2], std::uint64_t left, std::uint64_t right, int adds)
{
    if constexpr (sizeof(typename Math::Stored) == 1) {
        static_assert(!left_transposed && !right_transposed && n == 128);
        FLASHOMP_SHARED_8(128, 64, 64, 65, 66);
    } else if constexpr (Math::is_bfloat16 != 0) {
        FLASHOMP_SHARED_OF("bf16")
    } else {
        FLASHOMP_SHARED_OF("f16")
    }
}

/// The same with the left operand in registers, as accumulators rounded to 16 bits lie there.
template <class Math, int n, bool right_transposed>
__device__ __forceinline__ void multiply_add(float (&d)[n / 2], const std::uint32_t (&left)[4], std::uint64_t right,
                                             int adds)
{
    if constexpr (sizeof(typename Math::Stored) == 1) {
        static_assert(!right_transposed && (n == 64 || n == 128));
        if constexpr (n == 64) {
            FLASHOMP_REGISTERS_8(64, 32, 32, 33, 34, 35, 36, 37);
        } else {
            FLASHOMP_REGISTERS_8(128, 64, 64, 65, 66, 67, 68, 69);
        }
    } else if constexpr (Math::is_bfloat16 != 0) {
        FLASHOMP_REGISTERS_OF("bf16")
    } else {
        FLASHOMP_REGISTERS_OF("f16")
    }
}

#undef FLASHOMP_REGISTERS_OF
#undef FLASHOMP_SHARED_OF
#undef FLASHOMP_REGISTERS
#undef FLASHOMP_SHARED
#undef FLASHOMP_REGISTERS_8
#undef FLASHOMP_SHARED_8
#undef FLASHOMP_O128
#undef FLASHOMP_O96
#undef FLASHOMP_O88
#undef FLASHOMP_O80
#undef FLASHOMP_O64
#undef FLASHOMP_O48
#undef FLASHOMP_O40
#undef FLASHOMP_O32
#undef FLASHOMP_O8
#undef FLASHOMP_R128
#undef FLASHOMP_R96
#undef FLASHOMP_R88
#undef FLASHOMP_R64
#undef FLASHOMP_R48
#undef FLASHOMP_R32
#undef FLASHOMP_R80
#undef FLASHOMP_R40
#undef FLASHOMP_R20
#undef FLASHOMP_T

} // namespace flashomp::cuda
