// Sums that the copy engine adds to memory (PTX ISA, "cp.reduce.async.bulk"), and the turns in which crews do so.
//
// Of the names with ::, the assembler takes each for a label: underscores here, put right by cmake/hopper/as.
#pragma once

#include "nvidia/bulk_copy.hpp"

#pragma omp declare target

namespace flashomp::offload::ptx {

/// A sum that lane 0 of a warp sends: where it goes, and the number there that says whose turn it is.
struct Sending {
    float* target;
    unsigned* turn;
    unsigned number; ///< to wait for; the first to come stores, so that nobody has to clear the target
    unsigned next;   ///< what the number is to be afterwards
};

/// Of shared memory, for a Sending: what follows there begins at a multiple of 16 bytes.
inline constexpr int sending_bytes = 32;

/// By lane 0: `next` goes to sending_bytes of shared memory, for ask_turn(), send_sum() and pass_turn().
FLASHOMP_INLINE void note_sending(const Sending& next, std::uint32_t place)
{
    if (is_nvptx()) {
        asm volatile("{ .reg .pred first; .reg .u64 t, g; .reg .u32 v; mov.u32 v, %%tid.x; setp.eq.u32 first, v, 0;"
                     " cvta.to.global.u64 t, %1; cvta.to.global.u64 g, %0;"
                     " @first st.shared.u64 [%4], g; @first st.shared.u64 [%4+8], t;"
                     " @first st.shared.u32 [%4+16], %2; @first st.shared.u32 [%4+20], %3; }" ::"r"(
                         reinterpret_cast<unsigned long long>(next.target)),
                     "r"(reinterpret_cast<unsigned long long>(next.turn)), "r"(next.number), "r"(next.next),
                     "r"(place));
    }
}

/// By lane 0: a number in global memory, which nobody waits for yet.
FLASHOMP_INLINE unsigned ask_turn(const unsigned* number)
{
    std::uint32_t seen = 0;
    if (is_nvptx()) {
        asm volatile("{ .reg .pred asks; .reg .u64 t; .reg .u32 v; mov.u32 v, %%tid.x; setp.eq.u32 asks, v, 0;"
                     " cvta.to.global.u64 t, %1; mov.u32 %0, 0; @asks ld.relaxed.gpu.global.u32 %0, [t]; }"
                     : "=r"(seen)
                     : "r"(reinterpret_cast<unsigned long long>(number)));
    }
    return seen;
}

/// By lane 0: waits for the turn that ask_turn() was given, unless `seen` is it, and then has the copy engine add
/// `bytes` of shared memory to the target, or store them there.
FLASHOMP_INLINE void send_sum(std::uint32_t place, unsigned seen, std::uint32_t shared, int bytes)
{
    if (is_nvptx()) {
        asm volatile("{ .reg .pred skips, waits, first; .reg .u64 t, g; .reg .u32 v, n;"
                     " mov.u32 v, %%tid.x; setp.ne.u32 skips, v, 0; @skips bra over;"
                     " ld.shared.u64 t, [%0+8]; ld.shared.u64 g, [%0]; ld.shared.u32 n, [%0+16];"
                     " mov.u32 v, %3; again: setp.eq.u32 waits, v, n; @waits bra now;"
                     " ld.relaxed.gpu.global.u32 v, [t]; bra again;"
                     " now: fence.proxy.async.global; setp.eq.u32 first, n, 0;"
                     " @first cp.async.bulk.global.shared_cta.bulk_group [g], [%1], %2;"
                     " @!first cp.reduce.async.bulk.global.shared_cta.bulk_group.add.f32 [g], [%1], %2;"
                     " cp.async.bulk.commit_group; over: }" ::"r"(place),
                     "r"(shared), "r"(bytes), "r"(seen));
    }
}

/// cp.async.bulk.wait_group.read: what the lane sent has been read.
FLASHOMP_INLINE void wait_sums_read()
{
    if (is_nvptx()) {
        asm volatile("cp.async.bulk.wait_group.read 0;" ::);
    }
}

/// By lane 0: once what it sent has arrived, it passes the turn on. Sums and numbers are where all multiprocessors see
/// them, in the L2 cache, and nothing but the number is to follow the sum: st.release would wait for all that the warp
/// has written.
FLASHOMP_INLINE void pass_turn(std::uint32_t place)
{
    if (is_nvptx()) {
        asm volatile("{ .reg .pred first; .reg .u64 t; .reg .u32 v, n; mov.u32 v, %%tid.x; setp.eq.u32 first, v, 0;"
                     " ld.shared.u64 t, [%0+8]; ld.shared.u32 n, [%0+20]; cp.async.bulk.wait_group 0;"
                     " @first st.relaxed.gpu.global.u32 [t], n; }" ::"r"(place));
    }
}

/// stmatrix.x4: four 8x8 matrices of 16-bit elements, lane l giving the address of row l%8 of matrix l/8.
FLASHOMP_INLINE void store_matrices(std::uint32_t shared, const Four& m)
{
    if (is_nvptx()) {
        asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared), "r"(m.x[0]),
                     "r"(m.x[1]), "r"(m.x[2]), "r"(m.x[3]));
    }
}

/// st.shared.v4: four floats.
FLASHOMP_INLINE void store_shared_128(std::uint32_t shared, float x, float y, float z, float w)
{
    if (is_nvptx()) {
        asm volatile("{ .reg .b32 v<4>; mov.b32 v0, %1; mov.b32 v1, %2; mov.b32 v2, %3; mov.b32 v3, %4;"
                     " st.shared.v4.b32 [%0], {v0, v1, v2, v3}; }" ::"r"(shared),
                     FLASHOMP_ASM_FLOAT(x), FLASHOMP_ASM_FLOAT(y), FLASHOMP_ASM_FLOAT(z), FLASHOMP_ASM_FLOAT(w));
    }
}

} // namespace flashomp::offload::ptx

#pragma omp end declare target
