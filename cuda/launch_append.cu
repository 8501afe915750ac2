// append() (offload/algorithm/append.hpp) as a CUDA kernel: a block for each row.
#include "append_kernels.hpp"
#include "grid.cuh"

namespace flashomp::cuda {

namespace {

constexpr int append_warps = 4;

__global__ void __launch_bounds__(32 * append_warps)
    append_kernel(const __grid_constant__ offload::AppendParams params, std::int64_t units)
{
    const std::int64_t unit = item_index();
    if (unit < units) {
        offload::append_one(params, unit);
    }
}

} // namespace

int run_append(const offload::AppendParams& params, void* stream)
{
    const std::int64_t units = offload::append_units(params);
    return launch_items<append_kernel>(units, append_warps, 0, static_cast<cudaStream_t>(stream), params, units);
}

} // namespace flashomp::cuda
