// The two things that a team on an NVIDIA GPU needs and g++ 12 has no usable directive for: team-local shared memory
// (it rejects `#pragma omp allocate`) and a fast barrier. All PTX of the plain machine is in team_memory.cpp.
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

/// The team's shared memory; null on the host. One copy for all kernels: the driver gives every kernel the shared
/// memory of every function it might reach through GOMP_parallel's function pointer, so six inlined pools of 48 KB
/// would be 285 KB for each of six kernels, and the image would not load.
float* team_memory();

/// Barrier of the `threads` threads of a team. libgomp 12's own takes about 20 µs on a GPU (docs/offload.md), the
/// hardware's 20 ns; on the host this is `omp barrier`.
void team_barrier(int threads);

} // namespace flashomp::offload

#pragma omp end declare target
