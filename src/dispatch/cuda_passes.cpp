#include "cuda_passes.hpp"

#include "cuda/hopper_kernels.hpp"
#include "cuda/kernels.hpp"
#include "cuda/runtime.hpp"

#include "flashomp/error.hpp"

#include <algorithm>
#include <fmt/format.h>
#include <vector>

namespace flashomp {

namespace {

using offload::Pass;

void expect_launched(int status, const Place& place)
{
    if (status != 0) {
        throw Error(fmt::format("a kernel could not be launched on {}: {}.", place.name, cuda::error_text(status)));
    }
}

/// The forward pass on float8_e4m3, which Hopper's kernel alone does.
void run_float8(Plan& plan, const Problem& problem, const offload::Params& params, const Place& place, Staging& staging,
                const Space& space)
{
    if (!place.hardware.has_hopper || !cuda::float8_supports(params)) {
        throw no_float8_kernel();
    }
    const auto factors = [&](const ConstTensorView& scale) {
        if (!scale) {
            return offload::RowTensor{};
        }
        const ConstTensorView there = staging.input(scale);
        return offload::RowTensor{static_cast<float*>(const_cast<void*>(there.data)),
                                  there.rank == 2 ? there.strides[0] : 0, 0};
    };
    const std::int64_t bytes = cuda::float8_workspace_bytes(params);
    const Workspace workspace(bytes, space);
    plan.crew_memory_bytes += bytes;
    plan.passes.front().machine = Machine::hopper;
    name_machines(plan);
    expect_launched(cuda::run_float8(params,
                                     {factors(problem.options.q_scale), factors(problem.options.k_scale),
                                      factors(problem.options.v_scale)},
                                     workspace.data(), space.stream, space.device),
                    place);
}

/// Gives the passes that have a Hopper kernel to it. Returns the workspace that the hungriest of them needs.
std::int64_t take_over(Plan& plan, const Problem& problem, const offload::Params& params, const Hardware& hardware)
{
    const Machine wanted = problem.options.machine;
    const Tiling& tiling = problem.options.tiling;
    const bool may_tile = tiling.resident_rows == 0 && tiling.stream_rows == 0 && tiling.team_threads == 0;
    std::int64_t bytes = 0;
    if (wanted != Machine::automatic && wanted != Machine::hopper) {
        return bytes;
    }
    bool does_keys = false; // with the pass before
    for (PassPlan& planned : plan.passes) {
        const Pass pass = planned.launch.pass;
        if (hardware.has_hopper && may_tile && cuda::hopper_supports(pass, params)) {
            planned.machine = Machine::hopper;
            bytes = std::max(bytes, cuda::hopper_workspace_bytes(pass, params));
            does_keys = does_keys || pass == Pass::backward_query;
        } else if (does_keys && pass == Pass::backward_key) {
            planned.machine = Machine::hopper;
        } else if (wanted == Machine::hopper && pass != Pass::backward_bias && pass != Pass::backward_sink) {
            throw Error("machine was hopper, which is allowed only where the GPU has compute capability 9.0 and there "
                        "is a kernel for the dtype, head dim and options.");
        }
    }
    name_machines(plan);
    if (does_keys) {
        std::erase_if(plan.passes, [](const PassPlan& planned) { return planned.launch.pass == Pass::backward_key; });
    }
    return bytes;
}

} // namespace

Error no_float8_kernel()
{
    return Error("q is float8_e4m3, which is allowed on backend reference, and on backend cuda with a GPU of compute "
                 "capability 9.0, head dims up to 128 that are multiples of 16, and no softcap, alibi_slopes, bias, "
                 "dropout or packed sequences.");
}

bool run_cuda_passes(Plan& plan, const Problem& problem, const offload::Params& params, const Place& place,
                     Staging& staging)
{
    const Space space = space_of(place.hardware, problem.options);
    const cuda::CurrentDevice current(space.device);
    if (problem.dtype == DType::float8_e4m3) {
        run_float8(plan, problem, params, place, staging, space);
        return true;
    }
    const std::int64_t hopper_bytes = take_over(plan, problem, params, place.hardware);
    const Workspace hopper(hopper_bytes, space);
    plan.crew_memory_bytes += hopper_bytes;
    stage_units(plan, staging);
    for (const PassPlan& pass : plan.passes) {
        int status = 0;
        if (pass.machine == Machine::hopper) {
            status = cuda::run_hopper(pass.launch.pass, params, hopper.data(), space.stream, space.device);
        } else {
            const auto run = pass.machine == Machine::tensor ? cuda::run_tensor : cuda::run_plain;
            status = run(params, pass.launch, space.stream);
        }
        expect_launched(status, place);
    }
    if (params.splits > 1) {
        expect_launched(cuda::run_merge(split_merge(params, problem), space.stream), place);
    }
    return true; // a CUDA kernel runs on its device or not at all, and whoever waits for the stream learns which
}

void stage_units(Plan& plan, Staging& staging)
{
    for (PassPlan& pass : plan.passes) {
        if (pass.machine != Machine::hopper) { // whose kernels count for themselves
            pass.launch.units = staging.array(pass.units);
        }
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

} // namespace flashomp
