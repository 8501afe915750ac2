#include "dispatch.hpp"

#include "calls.hpp"
#include "cuda_passes.hpp"
#include "host_threads.hpp"
#include "kernel_params.hpp"
#include "nonfinite.hpp"
#include "nonfinite_word.hpp"
#include "place.hpp"
#include "plan.hpp"
#include "reference.hpp"
#include "words.hpp"
#include "workspace.hpp"

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
    if (problem.choice.device.kind == Device::Kind::gpu) {
        throw Error(fmt::format("device was {}, but the reference backend runs on the host; allowed are: auto, host.",
                                problem.choice.device.index));
    }
    if (problem.choice.stream) {
        throw Error("stream was given, but the reference backend runs on the host; allowed is a stream with backend "
                    "cuda.");
    }
    if (problem.choice.machine != Machine::automatic) {
        throw Error(fmt::format("machine was {}, but the reference backend has no tile machines; allowed is: auto.",
                                tuning::word_of(problem.choice.machine)));
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

offload::Ran run_pass(const PassPlan& pass, const offload::Call& here, offload::Call* there)
{
    switch (pass.machine) {
    case Machine::hopper:
        return offload::run_hopper(here, there);
    case Machine::tensor:
        return offload::run_tensor(here, there);
    case Machine::plain:
        return offload::run_plain(here, there);
    case Machine::host:
    case Machine::automatic:
        break;
    }
    return pass.isa->run(there->params, there->launch);
}

offload::Ran run_openmp_merge(const offload::MergeParams& here, const offload::MergeParams* there,
                              const Hardware& hardware)
{
    return hardware.is_device ? offload::run_merge(there, offload::merge_units(here), hardware.device)
                              : hardware.isa->merge(here, host_threads(hardware.threads, offload::merge_units(here)));
}

/// Leaves a plan's host passes no more threads than the system starts. Returns how many the hungriest pass has.
int keep_to_startable(Plan& decided)
{
    int most = 1;
    for (const PassPlan& pass : decided.passes) {
        most = std::max(most, pass.launch.crews * pass.launch.crew_threads);
    }
    const int threads = host_threads(most, most);
    for (PassPlan& pass : decided.passes) {
        int& wanted = pass.machine == Machine::plain ? pass.launch.crew_threads : pass.launch.crews;
        wanted = std::min(wanted, threads);
    }
    return threads;
}

/// Kernels that were sent to a device and ran on the host have written nothing.
void expect_where_sent(const Place& place, bool on_device)
{
    if (place.hardware.is_device && !on_device) {
        throw Error(
            fmt::format("the call was sent to {}, but its kernels report that they ran on the host.", place.name));
    }
}

/// The same for parameters that are nowhere but here.
offload::Ran send_openmp_merge(const offload::MergeParams& here, const Hardware& hardware, const Space& space)
{
    Image image(space);
    const std::int64_t at = image.reserve<offload::MergeParams>();
    image.place();
    image.write(at, &here);
    image.send();
    return run_openmp_merge(here, image.address<offload::MergeParams>(at), hardware);
}

/// All passes of a plan on the OpenMP backend. on_device: whether they ran where they were sent.
offload::Ran run_openmp_passes(const Plan& decided, const Problem& problem, const offload::Params& params,
                               const Hardware& hardware)
{
    const Space space = space_of(hardware, problem.choice);
    const Workspace crews(decided.crew_memory_bytes, space);
    const Calls calls(decided, problem, params, crews.floats(), space);
    offload::Ran all{hardware.is_device};
    const auto count = [&all](const offload::Ran& ran) {
        all.on_device = all.on_device && ran.on_device;
        all.all_is_finite = all.all_is_finite && ran.all_is_finite;
    };
    for (std::size_t i = 0; i < decided.passes.size(); ++i) {
        count(run_pass(decided.passes[i], calls.here(i), calls.there(i)));
    }
    if (decided.merges) {
        count(run_openmp_merge(calls.merge_here(), calls.merge_there(), hardware));
    }
    return all;
}

/// Computes the results of a call anew on the plain machine whose sums leave out hidden pairs. `params` are those of
/// the call. With `only_if` (CUDA), where that word on the device is not 0 when the kernels' turn comes.
void run_visible_passes(Problem problem, offload::Params params, const Place& place, Staging& staging,
                        const unsigned* only_if = nullptr)
{
    problem.choice.machine = Machine::plain;
    problem.choice.tiling = {};
    Plan decided = plan(problem, place.hardware);
    decided.splits = decided.head_splits = params.splits = params.head_splits = 1;
    decided.merges = false;
    params.nonfinite = nullptr; // what is not finite now is so by the inputs
    const Space space = space_of(place.hardware, problem.choice);
    if (space.kind == Space::Kind::cuda) {
        run_cuda_visible(decided, params, place, staging, space, only_if);
        return;
    }
    if (space.is_host()) {
        keep_to_startable(decided);
    }
    const Workspace crews(decided.crew_memory_bytes, space);
    const Calls calls(decided, problem, params, crews.floats(), space);
    for (std::size_t i = 0; i < decided.passes.size(); ++i) {
        expect_where_sent(place, offload::run_visible(calls.here(i), calls.there(i)).on_device);
    }
}

/// What offload/nonfinite.hpp promises, once the passes are launched: results that are not finite are computed anew.
void keep_to_visible(const Problem& problem, const offload::Params& params, const Plan& decided, const Place& place,
                     Staging& staging, const NonfiniteWord& nonfinite, bool all_is_finite)
{
    const Hardware& hardware = place.hardware;
    const Space space = space_of(hardware, problem.choice);
    if (problem.dtype == DType::float8_e4m3) {
        return; // the plain machine has none
    }
    if (space.is_asynchronous) { // nobody waits: the kernels look themselves
        run_visible_passes(problem, params, place, staging, nonfinite.address());
        return;
    }
    wait_for(space);
    if (all_is_finite && !nonfinite.is_set()) {
        return;
    }
    if (hardware.is_device || decided.passes.front().machine == Machine::plain) {
        run_visible_passes(problem, params, place, staging);
    } else {
        problem.is_backward ? offload::repair_backward(params, host_threads(hardware.threads))
                            : offload::repair_forward(params, host_threads(hardware.threads));
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
    const Place place = choose_place(given.choice);
    const Hardware& hardware = place.hardware;
    Problem problem = as_computed(given, hardware);
    problem.has_large_lse =
        problem.is_backward && problem.dtype == DType::float32 && !hardware.is_device && has_large_lse(problem);
    const Space space = space_of(hardware, problem.choice);
    for (const auto& [name, view] : problem.inputs()) {
        const bool is_starts = view.data == problem.cu_seqlens_q.data || view.data == problem.cu_seqlens_k.data;
        check_memory(view, name, place, space.is_asynchronous, is_starts);
    }
    for (const auto& [name, view] : problem.outputs()) {
        check_memory(view, name, place, space.is_asynchronous);
    }
    if (problem.dtype == DType::float8_e4m3 && hardware.backend != Backend::cuda) {
        throw no_float8_kernel();
    }
    Plan decided = plan(problem, hardware);
    const std::string ran_on = hardware.is_device ? place.name : host_name(keep_to_startable(decided));
    const auto start = Clock::now();

    Staging staging(space);
    const Workspace rows(decided.row_bytes, space);
    const Workspace partial(decided.partial_bytes, space);
    offload::Params params = kernel_params(problem, decided, staging, {rows.floats(), partial.floats()});
    const NonfiniteWord nonfinite(space);
    params.nonfinite = nonfinite.address();
    const bool is_cuda = hardware.backend == Backend::cuda;
    const offload::Ran ran = is_cuda ? offload::Ran{run_cuda_passes(decided, problem, params, place, staging)}
                                     : run_openmp_passes(decided, problem, params, hardware);
    expect_where_sent(place, ran.on_device);
    keep_to_visible(problem, params, decided, place, staging, nonfinite, ran.all_is_finite);
    staging.finish();

    Report report;
    report.backend = is_cuda ? "cuda" : "openmp";
    report.machine = decided.machine_name;
    report.on_device = ran.on_device;
    report.tuned = problem.is_tuned;
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
    Staging staging(space_of(place.hardware, options));
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
    const offload::Ran ran = is_cuda ? run_cuda_merge(params, place, options)
                                     : send_openmp_merge(params, place.hardware, space_of(place.hardware, options));
    expect_where_sent(place, ran.on_device);
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
    return problem.choice.backend == Backend::reference ? run_reference(problem) : run_kernels(problem);
}

} // namespace flashomp
