#include "dispatch.hpp"

#include "cuda_passes.hpp"
#include "host_threads.hpp"
#include "kernel_params.hpp"
#include "openmp_passes.hpp"
#include "place.hpp"
#include "plan.hpp"
#include "reference.hpp"
#include "second_computation.hpp"
#include "words.hpp"
#include "workspace.hpp"

#include "cuda/runtime.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
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

/// `is_read_on_host`: cu_seqlens, which plan() reads.
void check_memory(const ConstTensorView& view, const char* name, const Place& place, bool is_asynchronous,
                  bool is_read_on_host = false)
{
    if (view && is_asynchronous && view.memory == Memory::host && !is_read_on_host) {
        throw Error(
            fmt::format("{} is in host memory, but a stream was given; allowed with one is device memory.", name));
    }
    if (view.memory == Memory::device && !place.hardware.is_device) {
        throw Error(fmt::format("{} is in device memory, but the call runs on {}; allowed there is host memory.", name,
                                place.name));
    }
}

/// Whether LSE, rounded to float32, has lost more than what sums of some hundred products lose: half a unit in the
/// last place of 32 makes every P of a row wrong by 1e-6.
bool has_large_lse(const Problem& problem)
{
    constexpr float most = 32.0F;
    const offload::RowTensor lse = kernel_rows(problem.lse);
    const bool packed = problem.lse.rank == 2;
    const std::int64_t batches = packed ? 1 : problem.lse.shape[0];
    const std::int64_t rows = problem.lse.shape[packed ? 1 : 2];
    for (std::int64_t b = 0; b < batches; ++b) {
        for (std::int64_t head = 0; head < problem.heads_q; ++head) {
            const float* const x = offload::row_stats(lse, static_cast<int>(b), static_cast<int>(head), 0);
            const bool large = std::any_of(x, x + rows, [](float y) { return std::abs(y) > most && std::isfinite(y); });
            if (large) {
                return true;
            }
        }
    }
    return false;
}

Report run_kernels(const Problem& given)
{
    const Place place = choose_place(given.options);
    const Hardware& hardware = place.hardware;
    Problem problem = as_computed(given, hardware);
    problem.has_large_lse =
        problem.is_backward && problem.dtype == DType::float32 && !hardware.is_device && has_large_lse(problem);
    const Space space = space_of(hardware, problem.options);
    for (const auto& [name, view] : problem.inputs()) {
        const bool is_starts =
            view.data == problem.options.cu_seqlens_q.data || view.data == problem.options.cu_seqlens_k.data;
        check_memory(view, name, place, space.is_asynchronous, is_starts);
    }
    for (const auto& [name, view] : problem.outputs()) {
        check_memory(view, name, place, space.is_asynchronous);
    }
    if (space.is_asynchronous && !cuda::has_stream_memory(space.device)) {
        throw Error(
            fmt::format("stream was given, but {} has no memory in the order of streams; allowed is a call without "
                        "one.",
                        place.name));
    }
    if (space.is_asynchronous && problem.options.cu_seqlens_q && cuda::is_captured(space.device, space.stream)) {
        throw Error(
            "stream is being captured into a CUDA graph, and the tensors are packed (cu_seqlens_q): allowed in a "
            "graph are tensors that are not packed.");
    }
    Plan decided = plan(problem, hardware);
    const std::string ran_on = hardware.is_device ? place.name : host_name(keep_to_startable(decided));
    const auto start = Clock::now();

    Staging staging(space);
    const Workspace rows(decided.row_bytes, space);
    const Workspace partial(decided.partial_bytes, space);
    offload::Params params = kernel_params(problem, decided, staging, {rows.floats(), partial.floats()});
    SecondComputation second(problem, params, place, staging);
    const bool is_cuda = hardware.backend == Backend::cuda;
    const offload::Ran ran = is_cuda ? offload::Ran{run_cuda_passes(decided, problem, params, place, staging)}
                                     : run_openmp_passes(decided, problem, params, hardware);
    expect_where_sent(place, ran.on_device);
    const bool computed_twice = second.run(decided, ran.all_is_finite);
    staging.finish();

    Report report;
    report.backend = is_cuda ? "cuda" : "openmp";
    report.machine = decided.machine_name;
    report.on_device = ran.on_device;
    report.tuned = problem.is_tuned;
    report.computed_twice = computed_twice;
    report.ran_on = ran_on;
    report.note = place.note;
    report.seconds = seconds_since(start);
    report.extra_bytes = decided.extra_bytes();
    report.staged_bytes = staging.bytes();
    report.standard_bytes = reference::standard_attention_bytes(problem);
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
        check_memory(view, name, place, options.stream.has_value());
    }
    const auto start = Clock::now();
    const Space space = space_of(place.hardware, options);
    Staging staging(space);
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
    const bool is_cuda = place.hardware.backend == Backend::cuda;
    const offload::Ran ran =
        is_cuda ? run_cuda_merge(params, place, options) : run_openmp_merge(params, place.hardware, space);
    expect_where_sent(place, ran.on_device);
    if (!space.is_asynchronous) {
        wait_for(space);
    }
    staging.finish();

    Report report;
    report.backend = is_cuda ? "cuda" : "openmp";
    report.machine = "plain";
    report.on_device = ran.on_device;
    report.ran_on = place.hardware.is_device
                        ? place.name
                        : host_name(host_threads(place.hardware.threads, offload::merge_units(params)));
    report.note = place.note;
    report.seconds = seconds_since(start);
    report.staged_bytes = staging.bytes();
    return report;
}

Report run(const Problem& problem)
{
    return problem.options.backend == Backend::reference ? run_reference(problem) : run_kernels(problem);
}

} // namespace flashomp
