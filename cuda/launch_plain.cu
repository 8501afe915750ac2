// The passes and the merge on the plain machine (offload/plain/plain_machine.hpp), whose loops are here shared out by
// thread numbers instead of directives: float32, the gradients of the options, and whatever the tensor machines do not
// do.
#include "kernels.hpp"
#include "launch/keys.hpp"
#include "plain/visible_machine.hpp"
#include "plain_kernel.cuh"

namespace flashomp::cuda {

namespace {

using offload::PlainMachine;
using offload::SlicedMachine;
using offload::VisibleMachine;
using offload::VisibleSlicedMachine;

template <class Keys>
using PlainOf = PlainMachine;
template <class Keys>
using VisibleOf = VisibleMachine;

template <template <class Keys> class Machine>
cudaError_t run_on(const Params& params, const Launch& launch, cudaStream_t stream)
{
    cudaError_t status = cudaSuccess;
    offload::for_pass_and_keys(params.cache, launch.pass, params.is_modified,
                               [&]<Pass pass, bool modified, class Keys>() {
                                   status = launch_items<plain_kernel<Machine<Keys>, pass, modified, Keys>>(
                                       Work(params, launch).items, launch.crew_threads, launch.crew_floats * 4, stream,
                                       params, launch, nullptr);
                               });
    return status;
}

template <template <class Keys> class Machine>
cudaError_t run_visible_on(std::int64_t blocks, const Params& params, const Launch& launch, const unsigned* only_if,
                           cudaStream_t stream)
{
    cudaError_t status = cudaSuccess;
    offload::for_pass_and_keys(params.cache, launch.pass, true, [&]<Pass pass, bool, class Keys>() {
        status = launch_items<plain_kernel<Machine<Keys>, pass, pass != Pass::backward_sink, Keys>>(
            blocks, launch.crew_threads, launch.crew_floats * 4, stream, params, launch, only_if);
    });
    return status;
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
    if (offload::has_mask(params.mask) || offload::has_seam(params)) {
        return run_masked(params, launch, stream);
    }
    const auto on = static_cast<cudaStream_t>(stream);
    return launch.depth > offload::most_plain_depth ? run_on<SlicedMachine>(params, launch, on)
                                                    : run_on<PlainOf>(params, launch, on);
}

int run_visible(const Params& params, const Launch& launch, const unsigned* only_if, void* stream)
{
    // On a stream nearly all launches find 0. A block for each of thousands of items would take its time to find that.
    int device = 0, multiprocessors = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
    constexpr int resident = 2; // blocks on a multiprocessor, as plain_kernel's launch bounds have it
    const std::int64_t blocks = std::min(Work(params, launch).items, std::int64_t{resident} * multiprocessors);
    const auto on = static_cast<cudaStream_t>(stream);
    return launch.depth > offload::most_plain_depth
               ? run_visible_on<VisibleSlicedMachine>(blocks, params, launch, only_if, on)
               : run_visible_on<VisibleOf>(blocks, params, launch, only_if, on);
}

int run_merge(const offload::MergeParams& params, void* stream)
{
    const std::int64_t units = offload::merge_units(params);
    return launch_items<merge_kernel>(units, merge_warps, 0, static_cast<cudaStream_t>(stream), params, units);
}

} // namespace flashomp::cuda
