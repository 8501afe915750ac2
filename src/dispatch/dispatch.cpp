#include "dispatch.hpp"

#include "place.hpp"
#include "prepared_call.hpp"
#include "reference.hpp"
#include "words.hpp"
#include "workspace.hpp"

#include <chrono>
#include <fmt/format.h>

namespace flashomp {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start)
{
    return std::chrono::duration<double>(Clock::now() - start).count();
}

Report run_reference(const Problem& problem)
{
    if (problem.options.device.kind == Device::Kind::gpu) {
        throw Error(fmt::format("device was {}, but the reference backend runs on the host; allowed are: auto, host.",
                                problem.options.device.index));
    }
    if (problem.options.stream) {
        throw Error("stream was given, but the reference backend runs on the host; allowed is a stream with backend "
                    "cuda.");
    }
    if (problem.options.machine != Machine::automatic) {
        throw Error(fmt::format("machine was {}, but the reference backend has no tile machines; allowed is: auto.",
                                tuning::word_of(problem.options.machine)));
    }
    const auto start = Clock::now();
    problem.is_backward ? reference::backward_into(problem) : reference::forward_into(problem);
    Report report;
    report.backend = "reference";
    report.machine = "eigen";
    report.ran_on = host_name(reference::threads_of(problem));
    report.note = on_host_because("the reference backend runs nowhere else");
    report.seconds = seconds_since(start);
    report.standard_bytes = reference::standard_attention_bytes(problem);
    report.extra_bytes = report.standard_bytes + 4 * problem.lse.elements();
    return report;
}

Report run_kernels(const Problem& problem)
{
    PreparedCall call(problem, true);
    const auto start = Clock::now();
    const Workspace workspace(call.workspace_bytes(), call.space());
    Report report = call.report(call.run(problem, workspace.data(), problem.options.stream.value_or(nullptr)));
    report.seconds = seconds_since(start);
    return report;
}

} // namespace

Report run(const Problem& problem)
{
    return problem.options.backend == Backend::reference ? run_reference(problem) : run_kernels(problem);
}

} // namespace flashomp
