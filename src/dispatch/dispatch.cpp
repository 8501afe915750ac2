#include "dispatch.hpp"

#include "hopper_setup.hpp"
#include "kernel_params.hpp"
#include "place.hpp"
#include "plan.hpp"
#include "reference.hpp"
#include "workspace.hpp"

#include <chrono>
#include <fmt/format.h>
#include <omp.h>

namespace flashomp {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start)
{
    return std::chrono::duration<double>(Clock::now() - start).count();
}

Report run_reference(const Problem& problem)
{
    if (problem.choice.device.kind == Device::Kind::gpu) {
        throw Error(fmt::format("device was {}, but the reference backend runs on the host; allowed are: auto, host.",
                                problem.choice.device.index));
    }
    const auto start = Clock::now();
    problem.is_backward ? reference::backward_into(problem) : reference::forward_into(problem);
    Report report;
    report.backend = "reference";
    report.machine = "eigen";
    report.ran_on = host_name(omp_get_max_threads());
    report.note = on_host_because("the reference backend runs nowhere else");
    report.seconds = seconds_since(start);
    report.standard_bytes = reference::standard_attention_bytes(problem);
    report.extra_bytes = report.standard_bytes + 4 * problem.lse.elements();
    return report;
}

void check_memory(const ConstTensorView& view, const char* name, const Place& place)
{
    if (view.memory == Memory::device && !place.hardware.is_device) {
        throw Error(fmt::format("{} is in device memory, but the call runs on {}; allowed there is host memory.", name,
                                place.name));
    }
}

offload::Ran run_pass(const PassPlan& pass, const offload::Params& params)
{
    switch (pass.machine) {
    case Machine::hopper:
        return offload::run_hopper(params, pass.launch);
    case Machine::tensor:
        return offload::run_tensor(params, pass.launch);
    case Machine::plain:
        return offload::run_plain(params, pass.launch);
    case Machine::host:
    case Machine::automatic:
        break;
    }
    return pass.isa->run(params, pass.launch);
}

Report run_openmp(const Problem& problem)
{
    const Place place = choose_place(problem.choice);
    for (const auto& [name, view] : problem.inputs()) {
        check_memory(view, name, place);
    }
    for (const auto& [name, view] : problem.outputs()) {
        check_memory(view, name, place);
    }
    Plan decided = plan(problem, place.hardware);
    const auto start = Clock::now();

    const int device = place.hardware.device;
    Staging staging(device);
    const Workspace rows(decided.row_bytes, device);
    const Workspace partial(decided.partial_bytes, device);
    const Workspace crews(decided.crew_memory_bytes, device);
    const offload::Params params = kernel_params(problem, decided, staging, {rows.floats(), partial.floats()});

    const HopperSetup hopper(decided, problem, params, device);

    bool on_device = place.hardware.is_device;
    for (std::size_t i = 0; i < decided.passes.size(); ++i) {
        PassPlan& pass = decided.passes[i];
        pass.launch.crew_memory = crews.floats();
        pass.launch.units = staging.array(pass.units);
        pass.launch.counter = hopper.counter(i);
        const offload::Ran ran = run_pass(pass, hopper.with_maps(params, i)); // not behind &&, which might not call it
        on_device = on_device && ran.on_device;
    }
    if (params.splits > 1) {
        const offload::Ran ran = offload::run_merge(split_merge(params, problem), device, place.hardware.threads);
        on_device = on_device && ran.on_device;
    }
    staging.finish();

    Report report;
    report.backend = "openmp";
    report.machine = decided.machine_name;
    report.on_device = on_device;
    report.ran_on = place.name;
    report.note = place.note;
    report.seconds = seconds_since(start);
    report.extra_bytes = decided.lse_bytes + decided.row_bytes + decided.partial_bytes + decided.crew_memory_bytes;
    report.staged_bytes = staging.bytes();
    report.standard_bytes = reference::standard_attention_bytes(problem);
    if (place.hardware.is_device && !on_device) {
        throw Error(
            fmt::format("the call was sent to {}, but its kernels report that they ran on the host.", place.name));
    }
    return report;
}

offload::MergePart merge_part(const Partial& part, Staging& staging)
{
    const ConstTensorView o = staging.input(part.o);
    const ConstTensorView lse = staging.input(part.lse);
    return {kernel_tensor(o), kernel_rows(lse), kernel_element(o.dtype)};
}

} // namespace

Report run_merge(const Partial& a, const Partial& b, const TensorView& o, const TensorView& lse, const Options& options)
{
    const Place place = choose_place(options);
    for (const auto& [name, view] :
         {std::pair{"a.o", a.o}, std::pair{"a.lse", a.lse}, std::pair{"b.o", b.o}, std::pair{"b.lse", b.lse},
          std::pair{"o", ConstTensorView(o)}, std::pair{"lse", ConstTensorView(lse)}}) {
        check_memory(view, name, place);
    }
    const auto start = Clock::now();
    Staging staging(place.hardware.device);
    const bool packed = lse.rank == 2;
    offload::MergeParams params;
    params.parts = 2;
    params.part[0] = merge_part(a, staging);
    params.part[1] = merge_part(b, staging);
    params.batch = packed ? 1 : static_cast<int>(lse.shape[0]);
    params.heads = static_cast<int>(lse.shape[packed ? 0 : 1]);
    params.length = static_cast<int>(lse.shape[packed ? 1 : 2]);
    params.depth = static_cast<int>(o.shape[packed ? 2 : 3]);
    const TensorView o_there = staging.output(o);
    params.o = kernel_tensor(o_there);
    params.lse = kernel_rows(staging.output(lse));
    params.element = kernel_element(o.dtype);
    const offload::Ran ran = offload::run_merge(params, place.hardware.device, place.hardware.threads);
    staging.finish();

    Report report;
    report.backend = "openmp";
    report.machine = "plain";
    report.on_device = ran.on_device;
    report.ran_on = place.name;
    report.note = place.note;
    report.seconds = seconds_since(start);
    report.staged_bytes = staging.bytes();
    return report;
}

Report run(const Problem& problem)
{
    switch (problem.choice.backend) {
    case Backend::reference:
        return run_reference(problem);
    case Backend::cuda:
        throw NotBuilt("backend was cuda, which is not in this build yet; allowed are: openmp, reference.");
    case Backend::automatic:
    case Backend::openmp:
        break;
    }
    return run_openmp(problem);
}

} // namespace flashomp
