// Which of the crews that share a block's work is the last: it puts their results together.
#pragma once

#include "nvidia/ptx.hpp"

#pragma omp declare target

namespace flashomp::offload {

/// Whether this crew is the last of `crews` that come here for the same block: all others' results are then there to
/// read. `place`: 4 bytes of shared memory that everybody has read.
template <int warps>
FLASHOMP_INLINE bool is_last(unsigned* arrivals, int crews, std::uint32_t place)
{
    ptx::barrier<32 * warps>(); // the results of all warps are written
    if (ptx::warp() == 0) {
        ptx::fence_device();
        ptx::store_shared_32(place, __atomic_fetch_add(arrivals, 1U, __ATOMIC_RELAXED));
        ptx::fence_device();
    }
    ptx::barrier<32 * warps>();
    return bits_of(ptx::load_shared(place)) == static_cast<unsigned>(crews) - 1;
}

} // namespace flashomp::offload

#pragma omp end declare target
