// What two teams of a cluster (PTX ISA, "Cooperative thread arrays and clusters") tell each other: words written into
// the other team's shared memory, whose mbarriers count their bytes. Each team has the same things at the same
// addresses. That teams 2n and 2n + 1 of a launch are a cluster says cmake/hopper/as.
//
// Of the names with ::, the assembler takes each for a label: underscores here, put right by cmake/hopper/as.
#pragma once

#include "nvidia/ptx.hpp"

#pragma omp declare target

namespace flashomp::offload::ptx {

/// barrier.cluster: all lanes of both teams. What they wrote before, wherever, all of them can read after.
FLASHOMP_INLINE void cluster_barrier()
{
    if (is_nvptx()) {
        asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" ::);
    }
}

/// fence.mbarrier_init: barriers that this thread has made are there for those it meets at the next cluster_barrier().
FLASHOMP_INLINE void publish_barriers()
{
    if (is_nvptx()) {
        asm volatile("fence.mbarrier_init.release.cluster;" ::);
    }
}

/// mapa: where the team of this number in the cluster has what is at `shared` here.
FLASHOMP_INLINE std::uint32_t address_in_team(std::uint32_t shared, unsigned rank)
{
    std::uint32_t there = shared;
    if (is_nvptx()) {
        asm volatile("mapa.shared_cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared), "r"(rank));
    }
    return there;
}

/// st.shared::cluster.u32
FLASHOMP_INLINE void store_in_team(std::uint32_t there, std::uint32_t value)
{
    if (is_nvptx()) {
        asm volatile("st.shared_cluster.u32 [%0], %1;" ::"r"(there), "r"(value));
    }
}

/// st.async: 16 bytes, which the barrier there counts when they have come.
FLASHOMP_INLINE void send_128(std::uint32_t there, const Four& x, std::uint32_t barrier_there)
{
    if (is_nvptx()) {
        asm volatile(
            "{ .reg .b32 v<4>; mov.b32 v0, %1; mov.b32 v1, %2; mov.b32 v2, %3; mov.b32 v3, %4;"
            " st.async.shared_cluster.mbarrier_complete_tx_bytes.v4.b32 [%0], {v0, v1, v2, v3}, [%5]; }" ::"r"(there),
            "r"(x.x[0]), "r"(x.x[1]), "r"(x.x[2]), "r"(x.x[3]), "r"(barrier_there));
    }
}

/// mbarrier.arrive in the other team, by one lane of the warp, once all lanes have what they were reading in this
/// team's memory. Without the fence the word arrived, and with it what the other team then wrote, while loads were
/// still under way: an arrival orders them for its own team only. It waits for the warp's loads, and those are all that
/// is asked for here; .release.cluster waits for all memory there is, and the backward pass at depth 256 took 1.2 times
/// as long.
FLASHOMP_INLINE void arrive_in_team(std::uint32_t barrier_there)
{
    if (is_nvptx()) {
        asm volatile("{ .reg .pred p; fence.acq_rel.cta; bar.warp.sync 0xffffffff; elect.sync _|p, 0xffffffff;"
                     " @p mbarrier.arrive.shared_cluster.b64 _, [%0]; }" ::"r"(barrier_there));
    }
}

} // namespace flashomp::offload::ptx

#pragma omp end declare target
