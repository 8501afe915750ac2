// The NVIDIA instructions that the tensor machine is made of, one small function each, named by the PTX ISA.
//
// Rules of g++'s nvptx back end (docs/offload.md): operands are untyped, "r" (FLASHOMP_ASM_FLOAT is that, too), because
// the host's front end checks constraints first, and typed registers are declared inside; no operand is both read and
// written. Instructions that need the whole warp together, or that touch memory, are volatile, so that they stay in
// their order. None but refetch() clobbers "memory": shared memory is reached through these functions, but for what
// launch/shared_call.hpp keeps there, and g++ would reload every captured variable and parameter after each.
#pragma once

#include "algorithm/params.hpp"
#include "algorithm/team_memory.hpp"

#pragma omp declare target

namespace flashomp::offload::ptx {

/// Four 32-bit registers: a fragment of a 16x16 matrix of 16-bit elements, or of a 16x8 one of 32-bit ones.
struct Four {
    std::uint32_t x[4];
};

/// %tid.x: lane of the warp (an OpenMP thread is a warp, so lanes are the x axis of a block).
FLASHOMP_INLINE unsigned lane()
{
    std::uint32_t id = 0;
    if (is_nvptx()) {
        asm volatile("mov.u32 %0, %%tid.x;" : "=r"(id));
    }
    return id;
}

/// %tid.y: warp of the block.
FLASHOMP_INLINE unsigned warp()
{
    std::uint32_t id = 0;
    if (is_nvptx()) {
        asm volatile("mov.u32 %0, %%tid.y;" : "=r"(id));
    }
    return id;
}

/// x again, but nothing the compiler computes from it can be moved out of the loop it stands in: what each lane derives
/// from its number would otherwise be hoisted by the dozen and fill the registers.
FLASHOMP_INLINE unsigned here(unsigned x)
{
    std::uint32_t y = x;
    if (is_nvptx()) {
        asm volatile("mov.u32 %0, %1;" : "=r"(y) : "r"(x));
    }
    return y;
}

/// Makes the compiler fetch what it needs of parameters and captured variables again after this point, instead of
/// keeping all of it in registers.
FLASHOMP_INLINE void refetch()
{
    if (is_nvptx()) {
        asm volatile("" ::: "memory");
    }
}

/// cvta.to.shared: the address inside the block's shared memory.
FLASHOMP_INLINE std::uint32_t shared_address(const void* pointer)
{
    std::uint32_t address = 0;
    if (is_nvptx()) {
        asm("{ .reg .u64 a; cvta.to.shared.u64 a, %1; cvt.u32.u64 %0, a; }"
            : "=r"(address)
            : FLASHOMP_ASM_ADDRESS(reinterpret_cast<unsigned long long>(pointer)));
    }
    return address;
}

/// bar.sync: all `threads` lanes of the block. Barrier 8, since libgomp uses the first two.
template <int threads, int number = 8>
FLASHOMP_INLINE void barrier()
{
    if (is_nvptx()) {
        asm volatile("bar.sync %0, %1;" ::"n"(number), "n"(threads));
    }
}

/// bar.arrive: the same by those who do not wait for the others.
template <int threads, int number>
FLASHOMP_INLINE void arrive()
{
    if (is_nvptx()) {
        asm volatile("bar.arrive %0, %1;" ::"n"(number), "n"(threads));
    }
}

/// fence.acq_rel.gpu: what this thread and those it met at a barrier have written comes before what it writes next, for
/// the whole device.
FLASHOMP_INLINE void fence_device()
{
    if (is_nvptx()) {
        asm volatile("fence.acq_rel.gpu;" ::);
    }
}

/// cp.async, 16 bytes from global to shared memory past the registers; zeros unless row < end. The comparison is made
/// here, since g++ would make branches of a row of them.
FLASHOMP_INLINE void copy_async_16(std::uint32_t shared, const void* global, int row, int end)
{
    if (is_nvptx()) {
        asm volatile("{ .reg .u64 g; .reg .pred p; .reg .u32 n; cvta.to.global.u64 g, %1; setp.lt.s32 p, %2, %3;"
                     " selp.u32 n, 16, 0, p; cp.async.cg.shared.global [%0], [g], 16, n; }" ::"r"(shared),
                     FLASHOMP_ASM_ADDRESS(reinterpret_cast<unsigned long long>(global)), "r"(row), "r"(end));
    }
}

/// cp.async, one 4-byte word.
FLASHOMP_INLINE void copy_async_4(std::uint32_t shared, const void* global, int bytes)
{
    if (is_nvptx()) {
        asm volatile(
            "{ .reg .u64 g; cvta.to.global.u64 g, %1; cp.async.ca.shared.global [%0], [g], 4, %2; }" ::"r"(shared),
            FLASHOMP_ASM_ADDRESS(reinterpret_cast<unsigned long long>(global)), "r"(bytes));
    }
}

/// cp.async.commit_group
FLASHOMP_INLINE void copy_commit()
{
    if (is_nvptx()) {
        asm volatile("cp.async.commit_group;" ::);
    }
}

/// cp.async.wait_group: all but the last `pending` groups of this thread have arrived.
template <int pending>
FLASHOMP_INLINE void copy_wait()
{
    if (is_nvptx()) {
        asm volatile("cp.async.wait_group %0;" ::"n"(pending));
    }
}

/// st.shared.u16
FLASHOMP_INLINE void store_shared_16(std::uint32_t shared, std::uint32_t value)
{
    if (is_nvptx()) {
        asm volatile("{ .reg .u16 v; cvt.u16.u32 v, %1; st.shared.u16 [%0], v; }" ::"r"(shared), "r"(value));
    }
}

/// st.shared.u32
FLASHOMP_INLINE void store_shared_32(std::uint32_t shared, std::uint32_t value)
{
    if (is_nvptx()) {
        asm volatile("st.shared.u32 [%0], %1;" ::"r"(shared), "r"(value));
    }
}

/// ld.shared.u16
FLASHOMP_INLINE std::uint32_t load_shared_16(std::uint32_t shared)
{
    std::uint32_t value = 0;
    if (is_nvptx()) {
        asm volatile("{ .reg .u16 v; ld.shared.u16 v, [%1]; cvt.u32.u16 %0, v; }" : "=r"(value) : "r"(shared));
    }
    return value;
}

/// ld.shared.v4 and st.global.v4: 16 bytes from shared to global memory.
FLASHOMP_INLINE void copy_out_16(void* global, std::uint32_t shared)
{
    if (is_nvptx()) {
        asm volatile("{ .reg .u64 g; .reg .b32 v<4>; cvta.to.global.u64 g, %0; ld.shared.v4.b32 {v0, v1, v2, v3}, [%1];"
                     " st.global.v4.b32 [g], {v0, v1, v2, v3}; }" ::FLASHOMP_ASM_ADDRESS(
                         reinterpret_cast<unsigned long long>(global)),
                     "r"(shared));
    }
}

/// ld.shared.f32
FLASHOMP_INLINE float load_shared(std::uint32_t shared)
{
    float value = 0.0F;
    if (is_nvptx()) {
        asm volatile("{ .reg .f32 v; ld.shared.f32 v, [%1]; mov.b32 %0, v; }"
                     : "=" FLASHOMP_ASM_FLOAT(value)
                     : "r"(shared));
    }
    return value;
}

/// ld.shared.v2: two floats.
struct FloatPair {
    float x, y;
};
FLASHOMP_INLINE FloatPair load_shared_pair(std::uint32_t shared)
{
    FloatPair pair{};
    if (is_nvptx()) {
        asm volatile("{ .reg .b32 v<2>; ld.shared.v2.b32 {v0, v1}, [%2]; mov.b32 %0, v0; mov.b32 %1, v1; }"
                     : "=" FLASHOMP_ASM_FLOAT(pair.x), "=" FLASHOMP_ASM_FLOAT(pair.y)
                     : "r"(shared));
    }
    return pair;
}

/// ld.shared.v4: 16 bytes.
FLASHOMP_INLINE Four load_shared_128(std::uint32_t shared)
{
    Four m{};
    if (is_nvptx()) {
        asm volatile("{ .reg .b32 v<4>; ld.shared.v4.b32 {v0, v1, v2, v3}, [%4];"
                     " mov.b32 %0, v0; mov.b32 %1, v1; mov.b32 %2, v2; mov.b32 %3, v3; }"
                     : "=r"(m.x[0]), "=r"(m.x[1]), "=r"(m.x[2]), "=r"(m.x[3])
                     : "r"(shared));
    }
    return m;
}

/// st.global.v4: four floats.
FLASHOMP_INLINE void store_global_128(void* global, const float (&x)[4])
{
    if (is_nvptx()) {
        asm volatile(
            "{ .reg .u64 g; .reg .b32 v<4>; cvta.to.global.u64 g, %0; mov.b32 v0, %1; mov.b32 v1, %2;"
            " mov.b32 v2, %3; mov.b32 v3, %4; st.global.v4.b32 [g], {v0, v1, v2, v3}; }" ::FLASHOMP_ASM_ADDRESS(
                reinterpret_cast<unsigned long long>(global)),
            FLASHOMP_ASM_FLOAT(x[0]), FLASHOMP_ASM_FLOAT(x[1]), FLASHOMP_ASM_FLOAT(x[2]), FLASHOMP_ASM_FLOAT(x[3]));
    }
}

/// ld.global.v4: 16 bytes; zeros unless `there`, without a branch.
FLASHOMP_INLINE Four load_global_128(const void* global, bool there)
{
    Four v{};
    if (is_nvptx()) {
        asm volatile("{ .reg .u64 g; .reg .pred p; .reg .b32 v<4>; cvta.to.global.u64 g, %4; setp.ne.u32 p, %5, 0;"
                     " mov.b32 v0, 0; mov.b32 v1, 0; mov.b32 v2, 0; mov.b32 v3, 0;"
                     " @p ld.global.v4.b32 {v0, v1, v2, v3}, [g];"
                     " mov.b32 %0, v0; mov.b32 %1, v1; mov.b32 %2, v2; mov.b32 %3, v3; }"
                     : "=r"(v.x[0]), "=r"(v.x[1]), "=r"(v.x[2]), "=r"(v.x[3])
                     : FLASHOMP_ASM_ADDRESS(reinterpret_cast<unsigned long long>(global)), "r"(there ? 1 : 0));
    }
    return v;
}

/// ldmatrix.x4: four 8x8 matrices of 16-bit elements, lane l giving the address of row l%8 of matrix l/8.
FLASHOMP_INLINE Four load_matrices(std::uint32_t shared)
{
    Four m{};
    if (is_nvptx()) {
        asm volatile("{ .reg .b32 m<4>; ldmatrix.sync.aligned.m8n8.x4.shared.b16 {m0, m1, m2, m3}, [%4];"
                     " mov.b32 %0, m0; mov.b32 %1, m1; mov.b32 %2, m2; mov.b32 %3, m3; }"
                     : "=r"(m.x[0]), "=r"(m.x[1]), "=r"(m.x[2]), "=r"(m.x[3])
                     : "r"(shared));
    }
    return m;
}

/// ldmatrix.x4.trans: the same, each matrix transposed.
FLASHOMP_INLINE Four load_matrices_transposed(std::uint32_t shared)
{
    Four m{};
    if (is_nvptx()) {
        asm volatile("{ .reg .b32 m<4>; ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {m0, m1, m2, m3}, [%4];"
                     " mov.b32 %0, m0; mov.b32 %1, m1; mov.b32 %2, m2; mov.b32 %3, m3; }"
                     : "=r"(m.x[0]), "=r"(m.x[1]), "=r"(m.x[2]), "=r"(m.x[3])
                     : "r"(shared));
    }
    return m;
}

/// shfl.sync.bfly: the value of the lane whose number differs by `mask`.
template <int mask>
FLASHOMP_INLINE float shuffle_xor(float x)
{
    float y = x;
    if (is_nvptx()) {
        asm volatile("shfl.sync.bfly.b32 %0, %1, %2, 31, 0xffffffff;"
                     : "=" FLASHOMP_ASM_FLOAT(y)
                     : FLASHOMP_ASM_FLOAT(x), "n"(mask));
    }
    return y;
}

/// shfl.sync.idx: the value of lane `from` of the warp.
FLASHOMP_INLINE std::uint32_t shuffle(std::uint32_t x, unsigned from)
{
    std::uint32_t y = x;
    if (is_nvptx()) {
        asm volatile("shfl.sync.idx.b32 %0, %1, %2, 31, 0xffffffff;" : "=r"(y) : "r"(x), "r"(from));
    }
    return y;
}
FLASHOMP_INLINE std::int64_t shuffle(std::int64_t x, unsigned from)
{
    const auto bits = static_cast<std::uint64_t>(x);
    const std::uint64_t high = shuffle(static_cast<std::uint32_t>(bits >> 32), from);
    return static_cast<std::int64_t>(high << 32 | shuffle(static_cast<std::uint32_t>(bits), from));
}

/// vote.sync.any: whether the condition holds in any lane of the warp.
FLASHOMP_INLINE bool any_lane(bool condition)
{
    std::uint32_t any = condition;
    if (is_nvptx()) {
        asm volatile("{ .reg .pred p, q; setp.ne.u32 p, %1, 0; vote.sync.any.pred q, p, 0xffffffff;"
                     " selp.u32 %0, 1, 0, q; }"
                     : "=r"(any)
                     : "r"(static_cast<std::uint32_t>(condition)));
    }
    return any != 0;
}

/// max.f32: a NaN gives way to the other operand.
FLASHOMP_INLINE float max(float x, float y)
{
    float z = x > y ? x : y;
    if (is_nvptx()) {
        asm("{ .reg .f32 a, b; mov.b32 a, %1; mov.b32 b, %2; max.f32 a, a, b; mov.b32 %0, a; }"
            : "=" FLASHOMP_ASM_FLOAT(z)
            : FLASHOMP_ASM_FLOAT(x), FLASHOMP_ASM_FLOAT(y));
    }
    return z;
}

/// ex2.approx.ftz: 2^x, relative error below 2^-22; 0 for -inf.
FLASHOMP_INLINE float exp2_approx(float x)
{
    float y = 0.0F;
    if (is_nvptx()) {
        asm("{ .reg .f32 a; mov.b32 a, %1; ex2.approx.ftz.f32 a, a; mov.b32 %0, a; }"
            : "=" FLASHOMP_ASM_FLOAT(y)
            : FLASHOMP_ASM_FLOAT(x));
    }
    return y;
}

} // namespace flashomp::offload::ptx

#pragma omp end declare target
