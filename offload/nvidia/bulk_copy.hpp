// Hopper's copy engine (PTX ISA, "cp.async.bulk.tensor") and the barriers in shared memory that count its bytes
// ("mbarrier"). The engine is told of a whole tensor once, by a map that the driver makes
// (src/dispatch/tensor_maps.cpp), and then fetches a block, swizzled and with zeros beyond the tensor's ends, at one
// lane's word.
//
// Of the names with ::, the assembler takes each for a label: underscores here, put right by cmake/hopper/as.
#pragma once

#include "nvidia/ptx.hpp"

#pragma omp declare target

namespace flashomp::offload::ptx {

/// fence.proxy.async.shared::cta: what generic instructions have written to shared memory, or read from it, comes
/// before what wgmma and the copy engine do there. Without the state space it would be a fence of the whole GPU.
FLASHOMP_INLINE void publish_shared()
{
    if (is_nvptx()) {
        asm volatile("fence.proxy.async.shared_cta;" ::);
    }
}

/// fence.proxy.tensormap::generic.acquire: a map that was written by a copy to the device is what the engine sees.
FLASHOMP_INLINE void acquire_map(const void* map)
{
    if (is_nvptx()) {
        asm volatile(
            "{ .reg .u64 m; cvta.to.global.u64 m, %0; cvta.global.u64 m, m;"
            " fence.proxy.tensormap_generic.acquire.sys [m], 128; }" ::"r"(reinterpret_cast<unsigned long long>(map)));
    }
}

/// mbarrier.init, for so many arrivals a phase, by thread 0.
FLASHOMP_INLINE void barrier_init(std::uint32_t barrier, int arrivals, unsigned thread)
{
    if (is_nvptx()) {
        asm volatile("{ .reg .pred p; setp.eq.u32 p, %1, 0; @p mbarrier.init.shared_cta.b64 [%0], %2; }" ::"r"(barrier),
                     "r"(thread), "r"(arrivals));
    }
}

/// mbarrier.arrive.expect_tx, by one lane of the warp: the phase ends when so many bytes have come.
FLASHOMP_INLINE void barrier_expect(std::uint32_t barrier, unsigned bytes)
{
    if (is_nvptx()) {
        asm volatile("{ .reg .pred p; elect.sync _|p, 0xffffffff;"
                     " @p mbarrier.arrive.expect_tx.shared_cta.b64 _, [%0], %1; }" ::"r"(barrier),
                     "r"(bytes));
    }
}

/// mbarrier.try_wait.parity, until the phase of this parity has ended.
FLASHOMP_INLINE void barrier_wait(std::uint32_t barrier, unsigned parity)
{
    if (is_nvptx()) {
        asm volatile("{ .reg .pred done; again: mbarrier.try_wait.parity.shared_cta.b64 done, [%0], %1;"
                     " @!done bra again; }" ::"r"(barrier),
                     "r"(parity));
    }
}

/// cp.async.bulk.tensor.5d, by one lane of the warp: all panels of the map's box from (row, head, batch) on. Its
/// `bytes` are added to those that the barrier waits for (mbarrier.arrive.expect_tx).
FLASHOMP_INLINE void copy_box(std::uint32_t shared, const void* map, int row, int head, int batch, unsigned bytes,
                              std::uint32_t barrier)
{
    if (is_nvptx()) {
        asm volatile("{ .reg .pred p; .reg .u64 m; elect.sync _|p, 0xffffffff; mov.u64 m, %1;"
                     " @p mbarrier.arrive.expect_tx.shared_cta.b64 _, [%5], %6;"
                     " @p cp.async.bulk.tensor.5d.shared_cluster.global.mbarrier_complete_tx_bytes [%0],"
                     " [m, {0, %2, 0, %3, %4}], [%5]; }" ::"r"(shared),
                     "r"(reinterpret_cast<unsigned long long>(map)), "r"(row), "r"(head), "r"(batch), "r"(barrier),
                     "r"(bytes));
    }
}

/// cp.async.bulk, by one lane of the warp: a multiple of 16 bytes that lies at one, too.
FLASHOMP_INLINE void copy_bulk(std::uint32_t shared, const void* global, unsigned bytes, std::uint32_t barrier)
{
    if (is_nvptx()) {
        asm volatile(
            "{ .reg .pred p; .reg .u64 g; elect.sync _|p, 0xffffffff; cvta.to.global.u64 g, %1;"
            " @p cp.async.bulk.shared_cluster.global.mbarrier_complete_tx_bytes [%0], [g], %2, [%3]; }" ::"r"(shared),
            "r"(reinterpret_cast<unsigned long long>(global)), "r"(bytes), "r"(barrier));
    }
}

} // namespace flashomp::offload::ptx

#pragma omp end declare target
