// The passes and the merge on the plain machine (offload/plain/plain_machine.hpp), whose loops are here shared out by
// thread numbers instead of directives: float32, the gradients of the options, and whatever the tensor machines do not
// do.
#include "kernels.hpp"
#include "plain/visible_machine.hpp"
#include "plain_kernel.cuh"

namespace flashomp::cuda {

namespace {

using offload::PlainMachine;
using offload::VisibleMachine;

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
    if (offload::has_mask(params.mask)) {
        return run_masked(params, launch, stream);
    }
    cudaError_t status = cudaSuccess;
    offload::for_pass(launch.pass, params.is_modified, [&]<Pass pass, bool modified>() {
        status = launch_items<plain_kernel<PlainMachine, pass, modified>>(
            Work(params, launch).items, launch.crew_threads, launch.crew_floats * 4, static_cast<cudaStream_t>(stream),
            params, launch, nullptr);
    });
    return status;
}

int run_visible(const Params& params, const Launch& launch, const unsigned* only_if, void* stream)
{
    // On a stream nearly all launches find 0. A block for each of thousands of items would take its time to find that.
    int device = 0, multiprocessors = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
    constexpr int resident = 2; // blocks on a multiprocessor, as plain_kernel's launch bounds have it
    const std::int64_t blocks = std::min(Work(params, launch).items, std::int64_t{resident} * multiprocessors);
    cudaError_t status = cudaSuccess;
    offload::for_pass(launch.pass, true, [&]<Pass pass, bool>() {
        status = launch_items<plain_kernel<VisibleMachine, pass, pass != Pass::backward_sink>>(
            blocks, launch.crew_threads, launch.crew_floats * 4, static_cast<cudaStream_t>(stream), params, launch,
            only_if);
    });
    return status;
}

int run_merge(const offload::MergeParams& params, void* stream)
{
    const std::int64_t units = offload::merge_units(params);
    return launch_items<merge_kernel>(units, merge_warps, 0, static_cast<cudaStream_t>(stream), params, units);
}

} // namespace flashomp::cuda
