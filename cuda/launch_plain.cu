// The passes and the merge on the plain machine (offload/tile/plain.hpp), whose loops are here shared out by thread
// numbers instead of directives: float32, the gradients of the options, and whatever the tensor machines do not do.
#include "grid.cuh"
#include "launch.hpp"
#include "tile/visible.hpp"

namespace flashomp::cuda {

namespace {

using offload::PlainMachine;

constexpr int most_warps = 4;

template <Pass pass, bool modified>
__global__ void __launch_bounds__(32 * most_warps, 2)
    plain_kernel(const __grid_constant__ Params params, const __grid_constant__ Launch launch)
{
    const Work work(params, launch);
    const std::int64_t index = item_index();
    if (index < work.items) {
        const PlainMachine tile(static_cast<float*>(block_memory()), launch.resident_rows, launch.stream_rows,
                                launch.crew_threads);
        offload::run_item<pass, modified>(tile, params, work, index);
    }
}

/// Of a call whose results so far have set the word at only_if, or of any call where that is null.
template <Pass pass, bool modified>
__global__ void __launch_bounds__(32 * most_warps, 2)
    visible_kernel(const __grid_constant__ Params params, const __grid_constant__ Launch launch,
                   const unsigned* only_if)
{
    if (only_if != nullptr && *only_if == 0) {
        return;
    }
    const Work work(params, launch);
    const std::int64_t index = item_index();
    if (index < work.items) {
        const offload::VisibleMachine tile(static_cast<float*>(block_memory()), launch.resident_rows,
                                           launch.stream_rows, launch.crew_threads);
        offload::run_item<pass, modified>(tile, params, work, index);
    }
}

constexpr int merge_warps = 4;

__global__ void merge_kernel(const __grid_constant__ offload::MergeParams params, std::int64_t units)
{
    const std::int64_t unit = item_index();
    if (unit < units) {
        PlainMachine tile(nullptr, offload::merge_unit_rows(params), PlainMachine::micro,
                          merge_warps); // needs no memory of its own
        offload::merge_rows(tile, params, unit);
    }
}

} // namespace

int run_plain(const Params& params, const Launch& launch, void* stream)
{
    cudaError_t status = cudaSuccess;
    offload::for_pass(launch.pass, offload::has_modifications(params), [&]<Pass pass, bool modified>() {
        status = launch_items<plain_kernel<pass, modified>>(Work(params, launch).items, launch.crew_threads,
                                                            launch.crew_floats * 4, static_cast<cudaStream_t>(stream),
                                                            params, launch);
    });
    return status;
}

int run_visible(const Params& params, const Launch& launch, const unsigned* only_if, void* stream)
{
    cudaError_t status = cudaSuccess;
    offload::for_pass(launch.pass, true, [&]<Pass pass, bool>() {
        status = launch_items<visible_kernel<pass, pass != Pass::backward_sink>>(
            Work(params, launch).items, launch.crew_threads, launch.crew_floats * 4, static_cast<cudaStream_t>(stream),
            params, launch, only_if);
    });
    return status;
}

int run_merge(const offload::MergeParams& params, void* stream)
{
    const std::int64_t units = offload::merge_units(params);
    return launch_items<merge_kernel>(units, merge_warps, 0, static_cast<cudaStream_t>(stream), params, units);
}

} // namespace flashomp::cuda
