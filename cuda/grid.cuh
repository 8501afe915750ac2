// A grid of one block an item, in the order in which Work hands them out: the hardware starts the longest first.
#pragma once

#include "launch/pass.hpp"

#include <algorithm>
#include <atomic>
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

/// Launches `items` blocks of 32 x warps threads with that much dynamic shared memory.
template <auto kernel, class... Arguments>
cudaError_t launch_items(std::int64_t items, int warps, std::int64_t shared_bytes, cudaStream_t stream,
                         const Arguments&... arguments)
{
    if (items == 0) {
        return cudaSuccess;
    }
    constexpr std::int64_t static_limit = 48 << 10; // beyond it a kernel has to be told
    if (shared_bytes > static_limit) {
        static std::atomic<std::uint64_t> told = 0; // one bit a device
        int device = 0;
        cudaGetDevice(&device);
        const std::uint64_t bit = device < 64 ? std::uint64_t{1} << device : 0;
        if ((told.load() & bit) == 0) {
            int most = 0;
            cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
            const cudaError_t status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most);
            if (status != cudaSuccess) {
                return status;
            }
            told |= bit;
        }
    }
    constexpr std::int64_t most_blocks = (std::int64_t{1} << 31) - 1; // along x
    const std::int64_t columns = std::min(items, most_blocks);
    const dim3 grid(static_cast<unsigned>(columns), static_cast<unsigned>((items + columns - 1) / columns));
    kernel<<<grid, dim3(32, static_cast<unsigned>(warps)), static_cast<std::size_t>(shared_bytes), stream>>>(
        arguments...);
    return cudaGetLastError();
}

} // namespace flashomp::cuda
