// Elements of one tensor to another (offload/algorithm/elements.hpp) as a CUDA kernel: a block for each unit.
#include "elements_kernels.hpp"
#include "grid.cuh"

namespace flashomp::cuda {

namespace {

constexpr int elements_warps = 4;

__global__ void __launch_bounds__(32 * elements_warps)
    elements_kernel(const __grid_constant__ offload::ElementsParams params, std::int64_t units)
{
    const std::int64_t unit = item_index();
    if (unit < units) {
        offload::elements_one(params, unit);
    }
}

} // namespace

int run_elements(const offload::ElementsParams& params, void* stream)
{
    const std::int64_t units = offload::elements_units(params);
    return launch_items<elements_kernel>(units, elements_warps, 0, static_cast<cudaStream_t>(stream), params, units);
}

} // namespace flashomp::cuda
