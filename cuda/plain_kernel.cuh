// A pass on a machine of the plain family, whose crews are blocks.
#pragma once

#include "grid.cuh"

namespace flashomp::cuda {

namespace {

constexpr int most_warps = 4;

/// Blocks take items in turn. With `only_if`, where that word is not 0.
template <class Machine, Pass pass, bool modified, class Keys>
__global__ void __launch_bounds__(32 * most_warps, 2)
    plain_kernel(const __grid_constant__ Params params, const __grid_constant__ Launch launch, const unsigned* only_if)
{
    if (only_if != nullptr && *only_if == 0) {
        return;
    }
    const Work work(params, launch);
    const Machine tile(static_cast<float*>(block_memory()), launch.resident_rows, launch.stream_rows,
                       launch.crew_threads);
    const std::int64_t blocks = std::int64_t{gridDim.x} * gridDim.y;
    for (std::int64_t index = item_index(); index < work.items; index += blocks) {
        offload::run_item<pass, modified, Keys>(tile, params, work, index);
    }
}

} // namespace

} // namespace flashomp::cuda
