#include "algorithm/team_memory.hpp"

#if defined(__clang__)
#define FLASHOMP_NO_INLINE __attribute__((noinline))
#else
#define FLASHOMP_NO_INLINE __attribute__((noinline, noclone))
#endif

#pragma omp declare target

namespace flashomp::offload {

FLASHOMP_NO_INLINE float* team_memory()
{
    float* memory = nullptr;
    if (is_nvptx()) {
        unsigned long long address = 0;
        // "r" for a 64-bit operand is what the host's front end accepts too; inside, everything is a typed .reg.
#if defined(FLASHOMP_HOPPER) && FLASHOMP_HOPPER != 0
        // Dynamic: cmake/hopper/as declares it. The linker puts it right behind the static arrays, whatever alignment
        // is asked for.
        asm volatile("{ .reg .u32 s; .reg .u64 a; mov.u32 s, flashomp_dynamic; add.u32 s, s, 1023; and.b32 s, s, -1024;"
                     " cvt.u64.u32 a, s; cvta.shared.u64 %0, a; }"
                     : "=r"(address));
#else
        asm volatile("{ .shared .align 1024 .b8 flashomp_pool[48640]; .reg .u64 a; mov.u64 a, flashomp_pool;"
                     " cvta.shared.u64 %0, a; }"
                     : "=r"(address));
#endif
        memory = reinterpret_cast<float*>(address);
    }
    return memory;
}

FLASHOMP_NO_INLINE void team_barrier(int threads)
{
    if (is_nvptx()) {
        // Barrier 8 of the block's 16 (libgomp uses the first two); an OpenMP thread is a warp of 32.
        asm volatile("bar.sync 8, %0;" ::"r"(threads * 32) : "memory");
        return;
    }
#pragma omp barrier
}

} // namespace flashomp::offload

#pragma omp end declare target
