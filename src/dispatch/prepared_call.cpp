#include "prepared_call.hpp"

#include "cuda_passes.hpp"
#include "host_threads.hpp"
#include "kernel_params.hpp"
#include "openmp_passes.hpp"
#include "problem_tensors.hpp"
#include "reference.hpp"

#include "cuda/runtime.hpp"

#include "flashomp/version.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fmt/format.h>
#include <string_view>

namespace flashomp {

namespace {

using Clock = std::chrono::steady_clock;

/// Whether LSE, rounded to float32, has lost more than what sums of some hundred products lose: half a unit in the
/// last place of 32 makes every P of a row wrong by 1e-6.
bool has_large_lse(const Problem& problem)
{
    constexpr float most = 32.0F;
    const offload::RowTensor lse = kernel_rows(problem.lse);
    const bool packed = problem.lse.rank == 2;
    const std::int64_t batches = packed ? 1 : problem.lse.shape[0];
    const std::int64_t rows = problem.lse.shape[packed ? 1 : 2];
    if (rows == 0) {
        return false; // without a look at each of what may be many heads
    }
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

/// Whether the plan depends on the values of LSE.
bool depends_on_lse(const Problem& problem, const Hardware& hardware)
{
    return problem.is_backward && problem.dtype == DType::float32 && !hardware.is_device;
}

/// The tables of a cache are copied from the host at every run, and a graph would copy what the host has when the graph
/// is launched.
void refuse_captured_cache(const Problem& problem, const Space& space)
{
    if (space.is_asynchronous && is_cache(problem) && cuda::is_captured(space.device, space.stream)) {
        throw Error(
            "stream is being captured into a CUDA graph, and k and v are a cache, whose tables each run reads on "
            "the host: allowed in a graph are calls without a cache.");
    }
}

/// Headers of another version may lay out what kernels are given in another way.
void check_own_score(const ScoreMod& score_mod)
{
    const offload::ScoreKernels* const own = score_mod.kernels;
    if (own == nullptr || (own->version == FLASHOMP_VERSION && own->params_bytes == sizeof(offload::Params) &&
                           own->launch_bytes == sizeof(offload::Launch))) {
        return;
    }
    throw Error(fmt::format("score_mod was compiled with the headers of flashomp {}, and the library is {}; they must "
                            "be of one build.",
                            own->version, FLASHOMP_VERSION));
}

/// The place where the call runs. Throws Error where the call's tensors or stream cannot be had there.
Place place_for(const Problem& problem)
{
    check_own_score(problem.options.score_mod);
    Place place = choose_place(problem.options);
    const Space space = space_of(place.hardware, problem.options);
    each_tensor(problem, [&](const char* name, const ConstTensorView& view) {
        check_memory(view, name, place, space.is_asynchronous, is_read_on_host(name));
    });
    if (space.is_asynchronous && !cuda::has_stream_memory(space.device)) {
        throw Error(
            fmt::format("stream was given, but {} has no memory in the order of streams; allowed is a call without "
                        "one.",
                        place.name));
    }
    if (space.is_asynchronous && problem.options.cu_seqlens_q && cuda::is_captured(space.device, space.stream)) {
        throw Error("stream is being captured into a CUDA graph, and the tensors are packed (cu_seqlens_q): allowed in "
                    "a graph are tensors that are not packed, and runs of a call that was prepared before.");
    }
    refuse_captured_cache(problem, space);
    return place;
}

/// Runs of a call that may have other addresses may be on other streams, too, and the caller may end this one.
Space space_of_constants(Space space, bool keeps_addresses)
{
    if (!keeps_addresses) {
        space.is_asynchronous = false;
        space.stream = nullptr;
    }
    return space;
}

/// The problem as its plan sees it.
Problem planned_problem(const Problem& problem, const Hardware& hardware, bool keeps_addresses)
{
    Problem computed = as_computed(problem, hardware);
    computed.has_large_lse = keeps_addresses && depends_on_lse(computed, hardware) && has_large_lse(computed);
    // starts_q and starts_k have their values; the caller's tensors may be gone when a run comes.
    computed.options.cu_seqlens_q = computed.options.cu_seqlens_k = {};
    return computed;
}

/// Bytes of a run's workspace that are 0 when its kernels begin: by one launch for both.
struct Zeros {
    std::int64_t of_word, of_arrivals; ///< in this order; OpenMP's arrivals come with Calls

    Zeros(const Plan& plan, const Space& space)
        : of_word(NonfiniteWord::workspace_bytes(space)),
          of_arrivals(space.kind == Space::Kind::cuda ? plan.merged_blocks * static_cast<std::int64_t>(sizeof(unsigned))
                                                      : 0)
    {
    }
    [[nodiscard]] std::int64_t bytes() const { return of_word + of_arrivals; }
};

} // namespace

PreparedCall::PreparedCall(const Problem& problem, bool keeps_addresses)
    : place_(place_for(problem)), space_(space_of(place_.hardware, problem.options)),
      problem_(planned_problem(problem, place_.hardware, keeps_addresses)), way_(problem_, place_, space_),
      way_of_large_lse_(keeps_addresses ? nullptr : way_of_large_lse()), second_(problem_, place_, space_),
      constants_(space_of_constants(space_, keeps_addresses), problem_,
                 {&way_.plan, way_of_large_lse_ ? &way_of_large_lse_->plan : nullptr, second_.plan_of_stream()}),
      word_(space_), lengths_(problem_), staging_(staging_bytes(problem_, space_)),
      gathered_(staging_.gathered, Space{})
{
    staging_.add(lengths_.view(), space_);
}

std::unique_ptr<PreparedCall::Way> PreparedCall::way_of_large_lse() const
{
    if (!depends_on_lse(problem_, place_.hardware)) {
        return nullptr;
    }
    Problem with_large_lse = problem_;
    with_large_lse.has_large_lse = true;
    return std::make_unique<Way>(with_large_lse, place_, space_);
}

PreparedCall::Layout PreparedCall::layout_of(const Way& way) const
{
    Layout layout;
    const auto place = [&layout](std::int64_t& at, std::int64_t bytes) {
        at = layout.bytes;
        layout.bytes += in_workspace(bytes);
    };
    place(layout.rows, way.plan.row_bytes);
    place(layout.partial, way.plan.partial_bytes);
    place(layout.crews, way.plan.crew_memory_bytes);
    place(layout.tiles, way.plan.tile_bytes);
    place(layout.calls, way.calls.workspace_bytes());
    place(layout.zeros, Zeros(way.plan, space_).bytes());
    place(layout.copies, staging_.memory);
    return layout;
}

std::int64_t PreparedCall::workspace_bytes() const
{
    const std::int64_t bytes = layout_of(way_).bytes;
    return way_of_large_lse_ ? std::max(bytes, layout_of(*way_of_large_lse_).bytes) : bytes;
}

RunReport PreparedCall::run(const Problem& addresses, void* workspace, void* stream)
{
    const auto start = Clock::now();
    if (!space_.is_host()) {
        expect_own_devices(place_.hardware.backend);
    }
    Space space = space_;
    space.stream = stream;
    refuse_captured_cache(problem_, space);
    wait_before(space);
    problem_.take_addresses(addresses);
    Way& way = way_of_large_lse_ && has_large_lse(problem_) ? *way_of_large_lse_ : way_;
    const Layout layout = layout_of(way);
    const auto memory = [workspace](std::int64_t at) { return static_cast<std::byte*>(workspace) + at; };
    const auto floats = [&memory](std::int64_t at, std::int64_t bytes) {
        return bytes > 0 ? reinterpret_cast<float*>(memory(at)) : nullptr;
    };

    Staging staging(space, memory(layout.copies), staging_, gathered_.data());
    offload::Params params =
        kernel_params(problem_, way.plan, staging,
                      {floats(layout.rows, way.plan.row_bytes), floats(layout.partial, way.plan.partial_bytes)},
                      lengths_.read(problem_, constants_.boundaries(), staging));
    if (way.plan.tile_bytes > 0) { // Calls and the cuda backend make it each pass's table
        params.mask.tiles = reinterpret_cast<std::uint8_t*>(memory(layout.tiles));
    }
    const Zeros zeros(way.plan, space);
    if (zeros.bytes() > 0) {
        clear(memory(layout.zeros), space, zeros.bytes());
    }
    params.nonfinite = word_.start(memory(layout.zeros), space);
    float* const crew_memory = floats(layout.crews, way.plan.crew_memory_bytes);
    // Of the host: fewer than were planned for where the run is inside a parallel region.
    const int most_threads = std::min(place_.hardware.threads, planned_threads(problem_.options.threads));
    RunReport report;
    offload::Ran ran{true};
    if (space.kind == Space::Kind::cuda) {
        // A CUDA kernel runs on its device or not at all, and whoever waits for the stream learns which.
        auto* const arrivals = reinterpret_cast<unsigned*>(memory(layout.zeros + zeros.of_word));
        run_cuda_passes(way.plan, problem_, params, place_, space, staging, crew_memory,
                        zeros.of_arrivals > 0 ? arrivals : nullptr);
    } else {
        report.threads = space.is_host() ? startable_threads(way.plan, most_threads) : 0;
        way.calls.set(problem_, params, crew_memory, memory(layout.calls), space, report.threads);
        ran = run_openmp_passes(way.plan, way.calls, place_.hardware, most_threads);
    }
    expect_where_sent(place_, ran.on_device);
    if (space.is_asynchronous) {
        second_.queue(params, space);
    } else {
        wait_for(space);
        report.computed_twice = (!ran.all_is_finite || word_.is_set()) && second_.run(way.plan, params, most_threads);
    }
    staging.finish();

    report.machine = way.plan.machine_name;
    report.on_device = ran.on_device;
    report.extra_bytes = way.plan.extra_bytes();
    report.seconds = std::chrono::duration<double>(Clock::now() - start).count();
    return report;
}

Report PreparedCall::report(const RunReport& run) const
{
    Report report;
    report.backend = place_.hardware.backend == Backend::cuda ? "cuda" : "openmp";
    report.machine = run.machine;
    report.on_device = run.on_device;
    report.tuned = problem_.is_tuned;
    report.computed_twice = run.computed_twice;
    report.ran_on = place_.hardware.is_device ? place_.name : host_name(run.threads);
    report.note = place_.note;
    report.seconds = run.seconds;
    report.extra_bytes = run.extra_bytes;
    report.staged_bytes = staging_.tensors;
    report.standard_bytes = reference::standard_attention_bytes(problem_);
    return report;
}

} // namespace flashomp
