#include "cuda_passes.hpp"

#include "registry.hpp"

#include "cuda/append_kernels.hpp"
#include "cuda/elements_kernels.hpp"
#include "cuda/kernels.hpp"
#include "cuda/runtime.hpp"

#include "flashomp/error.hpp"

#include <algorithm>
#include <fmt/format.h>

namespace flashomp {

namespace {

void expect_launched(int status, const Place& place)
{
    if (status != 0) {
        throw RunFailure(
            fmt::format("a kernel could not be launched on {}: {}.", place.name, cuda::error_text(status)));
    }
}

/// The factors of float8_e4m3 tensors, where kernels on the device can read them. Those of a cache are in Params.
cuda::Float8Scales scales_of(const Problem& problem, Tensors& tensors)
{
    if (problem.dtype != DType::float8_e4m3) {
        return {}; // another copy of a cache's factors would lie beyond the memory that was planned for copies
    }
    const auto factors = [&](const ConstTensorView& scale) {
        if (!scale) {
            return offload::RowTensor{};
        }
        const ConstTensorView there = tensors.input(scale);
        return offload::RowTensor{static_cast<float*>(const_cast<void*>(there.data)),
                                  there.rank == 2 ? there.strides[0] : 0, 0};
    };
    const Options& options = problem.options;
    return {factors(options.q_scale), factors(options.k_scale), factors(options.v_scale)};
}

} // namespace

void run_cuda_passes(const Plan& plan, const Problem& problem, const offload::Params& params, const Place& place,
                     const Space& space, Tensors& tensors, void* crew_memory, unsigned* arrivals)
{
    const cuda::CurrentDevice current(space.device);
    const cuda::Float8Scales scales = scales_of(problem, tensors);
    const DeviceFacts& facts = place.hardware.gpu;
    const cuda::Gpu gpu{space.device, std::max(1, facts.multiprocessors), facts.l2_bytes};
    for (const PassPlan& pass : plan.passes) {
        offload::Params of_pass = params;
        of_pass.mask.tiles = nullptr;
        if (pass.tile_bytes > 0) {
            offload::set_tiles(of_pass, pass.launch, params.mask.tiles);
        }
        offload::Launch launch = pass.launch;
        launch.arrivals = launch.pass == offload::Pass::forward ? arrivals : nullptr;
        expect_launched(pass.kernel->run_on_stream({of_pass, launch, scales, crew_memory, space.stream, gpu}), place);
    }
    if (plan.merges) {
        expect_launched(cuda::run_merge(split_merge(params, problem), space.stream), place);
    }
}

void run_cuda_visible(const Plan& plan, const offload::Params& params, const Place& place, const Space& space,
                      const unsigned* only_if)
{
    const cuda::CurrentDevice current(space.device);
    for (const PassPlan& pass : plan.passes) {
        expect_launched(cuda::run_visible(params, pass.launch, only_if, space.stream), place);
    }
}

offload::Ran run_cuda_merge(const offload::MergeParams& params, const Place& place, const Options& options)
{
    const Space space = space_of(place.hardware, options);
    const cuda::CurrentDevice current(space.device);
    expect_launched(cuda::run_merge(params, space.stream), place);
    return {true};
}

offload::Ran run_cuda_append(const offload::AppendParams& params, const Place& place, const Options& options)
{
    const Space space = space_of(place.hardware, options);
    const cuda::CurrentDevice current(space.device);
    expect_launched(cuda::run_append(params, space.stream), place);
    return {true};
}

offload::Ran run_cuda_elements(const offload::ElementsParams& params, const Place& place, const Space& space)
{
    const cuda::CurrentDevice current(space.device);
    expect_launched(cuda::run_elements(params, space.stream), place);
    return {true};
}

} // namespace flashomp
