// A grid of one block an item, in the order in which Work hands them out: the hardware starts the longest first.
#pragma once

#include "launch/pass.hpp"
#include "shared_memory.cuh"

#include <algorithm>
#include <cuda_runtime.h>

namespace flashomp::cuda {

using offload::Launch;
using offload::Params;
using offload::Pass;
using offload::Work;

/// The block's item; beyond the last one in a grid of two axes.
__device__ __forceinline__ std::int64_t item_index()
{
    return std::int64_t{blockIdx.y} * gridDim.x + blockIdx.x;
}

/// Shared memory that the launch asks for, as Hopper's swizzled panels want it aligned.
__device__ __forceinline__ void* block_memory()
{
    extern __shared__ __align__(1024) unsigned char memory[];
    return memory;
}

/// Launches a grid of blocks of 32 x warps threads with that much dynamic shared memory.
template <auto kernel, class... Arguments>
cudaError_t launch_grid(const dim3& grid, int warps, std::int64_t shared_bytes, cudaStream_t stream,
                        const Arguments&... arguments)
{
    constexpr std::int64_t static_limit = 48 << 10; // beyond it a kernel has to be allowed more
    if (shared_bytes > static_limit) {
        int device = 0;
        cudaGetDevice(&device);
        if (const cudaError_t status = allow_shared_memory<kernel>(device); status != cudaSuccess) {
            return status;
        }
    }
    kernel<<<grid, dim3(32, static_cast<unsigned>(warps)), static_cast<std::size_t>(shared_bytes), stream>>>(
        arguments...);
    return cudaGetLastError();
}

/// The same of so many blocks, which may be none.
template <auto kernel, class... Arguments>
cudaError_t launch_items(std::int64_t items, int warps, std::int64_t shared_bytes, cudaStream_t stream,
                         const Arguments&... arguments)
{
    if (items == 0) {
        return cudaSuccess;
    }
    constexpr std::int64_t most_blocks = (std::int64_t{1} << 31) - 1; // along x
    const std::int64_t columns = std::min(items, most_blocks);
    const dim3 grid(static_cast<unsigned>(columns), static_cast<unsigned>((items + columns - 1) / columns));
    return launch_grid<kernel>(grid, warps, shared_bytes, stream, arguments...);
}

} // namespace flashomp::cuda
