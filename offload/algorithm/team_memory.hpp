// The two things that a team on an NVIDIA GPU needs and g++ 12 has no usable directive for: team-local shared memory
// (it rejects `#pragma omp allocate`) and a fast barrier. All PTX of the plain machine is in team_memory.cpp.
#pragma once

#include "algorithm/params.hpp"

// Loops that the threads of a crew share out: iteration i belongs to the same lane in every loop of one trip count.
// Under CUDA a block is 32 x warps threads; these macros are all that tells the two backends' plain machines apart.
// NOLINTBEGIN(bugprone-macro-parentheses): i is a name
#ifdef __CUDA_ARCH__
#define FLASHOMP_FOR_CREW(i, count)                                                                                    \
    for (int i = static_cast<int>(threadIdx.y * 32 + threadIdx.x); i < (count); i += static_cast<int>(32 * blockDim.y))
#define FLASHOMP_FOR_WARPS(i, count)                                                                                   \
    for (int i = static_cast<int>(threadIdx.y); i < (count); i += static_cast<int>(blockDim.y))
#define FLASHOMP_FOR_LANES(i, count) for (int i = static_cast<int>(threadIdx.x); i < (count); i += 32)
#else
#define FLASHOMP_FOR_CREW(i, count) FLASHOMP_DO_PRAGMA(omp for simd nowait) for (int i = 0; i < (count); ++i)
#define FLASHOMP_FOR_WARPS(i, count) FLASHOMP_DO_PRAGMA(omp for nowait) for (int i = 0; i < (count); ++i)
#define FLASHOMP_FOR_LANES(i, count) FLASHOMP_DO_PRAGMA(omp simd) for (int i = 0; i < (count); ++i)
#endif
// NOLINTEND(bugprone-macro-parentheses)

#pragma omp declare target

namespace flashomp::offload {

/// A multiprocessor gives a block 48 KB of static shared memory; libgomp keeps about 0.4 KB of it.
inline constexpr int team_memory_bytes = 48640;

/// At its end, on the tensor-core machines: two numbers of items that a crew has drawn.
inline constexpr int drawn_bytes = 8;

/// True in code for an NVIDIA device, false on the host; folds at compile time on both sides.
FLASHOMP_INLINE bool is_nvptx()
{
#if defined(__CUDACC__)
#if defined(__CUDA_ARCH__)
    return true;
#else
    return false;
#endif
#elif defined(__GNUC__) && !defined(__clang__)
    return __builtin_acc_on_device(5) != 0; // 5: acc_device_nvidia
#else
    return false;
#endif
}

/// The team's shared memory; null on the host. One copy for all kernels: the driver gives every kernel the shared
/// memory of every function it might reach through GOMP_parallel's function pointer, so six inlined pools of 48 KB
/// would be 285 KB for each of six kernels, and the image would not load.
float* team_memory();

/// Barrier of the `threads` threads of a team (warps, on a GPU). libgomp 12's own takes about 20 µs on a GPU
/// (docs/offload.md), the hardware's 20 ns; on the host this is `omp barrier`.
#ifdef __CUDACC__
FLASHOMP_INLINE void team_barrier([[maybe_unused]] int threads)
{
#ifdef __CUDA_ARCH__
    __syncthreads();
#endif
}
#else
void team_barrier(int threads);
#endif

} // namespace flashomp::offload

#pragma omp end declare target
