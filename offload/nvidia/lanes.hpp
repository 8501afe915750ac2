// What the lanes of a warp do together when they merge parts, in PTX.
#pragma once

#include "nvidia/ptx.hpp"

#pragma omp declare target

namespace flashomp::offload {

namespace ptx {

/// bar.warp.sync: all lanes of the warp.
FLASHOMP_INLINE void warp_barrier()
{
    if (is_nvptx()) {
        asm volatile("bar.warp.sync 0xffffffff;" ::: "memory");
    }
}

/// ld.global.f32, or `otherwise` where nothing is there.
FLASHOMP_INLINE float load_global_32(const float* global, bool there, float otherwise)
{
    float value = otherwise;
    if (is_nvptx()) {
        asm volatile("{ .reg .u64 g; .reg .pred p; .reg .b32 v; cvta.to.global.u64 g, %1; setp.ne.u32 p, %2, 0;"
                     " mov.b32 v, %3; @p ld.global.b32 v, [g]; mov.b32 %0, v; }"
                     : "=" FLASHOMP_ASM_FLOAT(value)
                     : FLASHOMP_ASM_ADDRESS(reinterpret_cast<unsigned long long>(global)), "r"(there ? 1 : 0),
                       FLASHOMP_ASM_FLOAT(otherwise));
    }
    return value;
}

} // namespace ptx

/// x of all lanes, put together by f, for all lanes.
template <class F>
FLASHOMP_INLINE float of_all_lanes(float x, const F& f)
{
    x = f(x, ptx::shuffle_xor<1>(x));
    x = f(x, ptx::shuffle_xor<2>(x));
    x = f(x, ptx::shuffle_xor<4>(x));
    x = f(x, ptx::shuffle_xor<8>(x));
    return f(x, ptx::shuffle_xor<16>(x));
}

} // namespace flashomp::offload

#pragma omp end declare target
