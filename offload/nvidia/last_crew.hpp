// Which of the crews that share a block's work is the last: it puts their results together.
#pragma once

#include "nvidia/ptx.hpp"

#pragma omp declare target

namespace flashomp::offload {

namespace ptx {

/// atom.add of 1, by the warp's first lane; what was there before goes to 4 bytes of shared memory. One statement,
/// since g++ has all lanes run it and nvcc no builtin for it.
FLASHOMP_INLINE void count_arrival(unsigned* arrivals, std::uint32_t place)
{
    if (is_nvptx()) {
        asm volatile("{ .reg .u64 g; .reg .pred p; .reg .b32 v; cvta.to.global.u64 g, %0; setp.eq.u32 p, %2, 0;"
                     " @p atom.global.add.u32 v, [g], 1; @p st.shared.b32 [%1], v; }" ::FLASHOMP_ASM_ADDRESS(
                         reinterpret_cast<unsigned long long>(arrivals)),
                     "r"(place), "r"(lane()));
    }
}

} // namespace ptx

/// Whether this crew is the last of `crews` that come here for the same block: all others' results are then there to
/// read. `place`: 4 bytes of shared memory that everybody has read.
template <int warps>
FLASHOMP_INLINE bool is_last(unsigned* arrivals, int crews, std::uint32_t place)
{
    ptx::refetch();             // the compiler puts no write off until after this
    ptx::barrier<32 * warps>(); // the results of all warps are written
    if (ptx::warp() == 0) {
        ptx::fence_device();
        ptx::count_arrival(arrivals, place);
        ptx::fence_device();
    }
    ptx::barrier<32 * warps>();
    return bits_of(ptx::load_shared(place)) == static_cast<unsigned>(crews) - 1;
}

} // namespace flashomp::offload

#pragma omp end declare target
