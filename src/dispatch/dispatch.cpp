#include "dispatch.hpp"

#include "host.hpp"
#include "kernel_params.hpp"
#include "plan.hpp"
#include "reference.hpp"
#include "workspace.hpp"

#include "flashomp/device.hpp"
#include "flashomp/version.hpp"

#include <algorithm>
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

std::string host_name(int threads)
{
    return fmt::format("host ({} thread{})", threads, threads == 1 ? "" : "s");
}

std::string host_reason(const Problem& problem)
{
    if (problem.choice.device.kind == Device::Kind::host) {
        return "running on the host: asked for";
    }
    if (std::string_view(build_info().offload) == "none") {
        return "running on the host: this build has no GPU code";
    }
    return "running on the host: no GPU was found";
}

/// Where the call runs, and why, from what the caller asked for and what is there.
struct Place {
    Hardware hardware;
    std::string name, note;
};

Place choose_place(const Problem& problem)
{
    Place place;
    place.hardware.isa = &choose_host_isa();
    place.hardware.threads = problem.choice.threads > 0 ? problem.choice.threads : omp_get_max_threads();
    const Device& wanted = problem.choice.device;
    // The host machine was named, and it runs nowhere else: the choice of device is made with it.
    const bool host_only = problem.choice.machine == Machine::host;
    if (wanted.kind == Device::Kind::host || (wanted.kind == Device::Kind::automatic && host_only)) {
        place.name = host_name(place.hardware.threads);
        place.note = "running on the host: asked for";
        return place;
    }
    const std::vector<DeviceInfo> found = devices();
    if (wanted.kind == Device::Kind::gpu &&
        (wanted.index < 0 || static_cast<std::size_t>(wanted.index) >= found.size())) {
        throw Error(fmt::format("device was {}, but {}; allowed are: auto, host{}.", wanted.index,
                                std::string_view(build_info().offload) == "none" ? "this build has no GPU code"
                                : found.empty()                                  ? "no GPU was found"
                                                : fmt::format("only {} GPU(s) were found", found.size()),
                                found.empty() ? "" : fmt::format(", 0 to {}", found.size() - 1)));
    }
    if (found.empty()) {
        place.name = host_name(place.hardware.threads);
        place.note = host_reason(problem);
        return place;
    }
    const DeviceInfo& device = found[wanted.kind == Device::Kind::gpu ? static_cast<std::size_t>(wanted.index) : 0];
    place.hardware.is_device = true;
    place.hardware.device = device.index;
    place.hardware.multiprocessors = device.multiprocessors;
    place.name = fmt::format("{} (device {})", device.name, device.index);
    place.note = wanted.kind == Device::Kind::gpu ? "running on the GPU: asked for"
                                                  : "running on the GPU: it is the first one found";
    return place;
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
    report.note = "running on the host: the reference backend runs nowhere else";
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

Report run_openmp(const Problem& problem)
{
    const Place place = choose_place(problem);
    for (const auto& [name, view] : problem.inputs()) {
        check_memory(view, name, place);
    }
    for (const auto& [name, view] : problem.outputs()) {
        check_memory(view, name, place);
    }
    Plan decided = plan(problem, place.hardware);
    const auto start = Clock::now();

    Staging staging(place.hardware.device);
    const Workspace rows(decided.row_bytes, place.hardware.device);
    const Workspace crews(decided.crew_memory_bytes, place.hardware.device);
    const offload::Params params = kernel_params(problem, staging, rows.floats());

    bool on_device = place.hardware.is_device;
    for (offload::Launch& launch : decided.passes) {
        launch.crew_memory = crews.floats();
        const offload::Ran ran = decided.machine == Machine::host ? place.hardware.isa->run(params, launch)
                                                                  : offload::run_plain(params, launch);
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
    report.extra_bytes = decided.lse_bytes + decided.row_bytes + decided.crew_memory_bytes;
    report.staged_bytes = staging.bytes();
    report.standard_bytes = reference::standard_attention_bytes(problem);
    if (place.hardware.is_device && !on_device) {
        throw Error(
            fmt::format("the call was sent to {}, but its kernels report that they ran on the host.", place.name));
    }
    return report;
}

} // namespace

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
