// Team-local shared memory of an NVIDIA GPU. The one thing g++ 12 has no directive for (it rejects
// `#pragma omp allocate`), so the one place that names it in PTX; Launch::crew_memory replaces it by plain memory.
#pragma once

#pragma omp declare target

namespace flashomp::offload {

/// A multiprocessor gives a block 48 KB of static shared memory; libgomp keeps about 0.4 KB of it.
inline constexpr int team_memory_bytes = 48640;

/// True in code for an NVIDIA device, false on the host; folds at compile time on both sides.
inline __attribute__((always_inline)) bool is_nvptx()
{
#if defined(__GNUC__) && !defined(__clang__)
    return __builtin_acc_on_device(5) != 0; // 5: acc_device_nvidia
#else
    return false;
#endif
}

/// The team's shared memory; null on the host.
inline __attribute__((always_inline)) float* team_memory()
{
    float* memory = nullptr;
    if (is_nvptx()) {
        unsigned long long address = 0;
        // "r" constraints and the .reg inside are what both front ends accept (docs/offload.md).
        asm volatile("{ .shared .align 128 .b8 flashomp_pool[48640]; .reg .u64 a; mov.u64 a, flashomp_pool;"
                     " cvta.shared.u64 %0, a; }"
                     : "=r"(address));
        memory = reinterpret_cast<float*>(address);
    }
    return memory;
}

} // namespace flashomp::offload

#pragma omp end declare target
