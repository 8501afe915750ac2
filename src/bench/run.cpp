#include "run.hpp"

#include "memory.hpp"
#include "standard.hpp"
#include "standard_cuda.hpp"
#include "timed_call.hpp"

#include "host_threads.hpp"
#include "peaks.hpp"
#include "place.hpp"
#include "plan.hpp"
#include "traffic.hpp"
#include "work.hpp"
#include "workspace.hpp"

#include "flashomp/error.hpp"

#include <algorithm>
#include <chrono>
#include <memory>
#include <new>
#include <optional>
#include <utility>

#include <fmt/format.h>

namespace flashomp::bench {

namespace {

double seconds_of(const std::function<void()>& call)
{
    const auto start = std::chrono::steady_clock::now();
    call();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Peak memory of `call` with the outputs it fills, which are made inside.
template <class Call>
std::optional<std::int64_t> peak_of(BenchCase& bench, bool backward, const Space& space, const Call& call)
{
    bench.drop_outputs(backward);
    release_workspaces(); // what earlier calls left behind would hide what this one takes
    if (!space.is_host()) {
        bench.make_outputs(backward);
        const WorkspaceWatch watch(space);
        call();
        return bench.output_bytes(backward) + watch.peak_bytes();
    }
    const ResidentPeak peak;
    bench.make_outputs(backward);
    call();
    return peak.bytes();
}

} // namespace

Runner::Runner(RunSettings settings) : settings_(std::move(settings))
{
    make_allocations_visible();
    if (settings_.prepared && settings_.options.backend == Backend::reference) {
        throw Error("--prepared was given with backend reference; allowed are auto, openmp and cuda.");
    }
    if (settings_.options.backend != Backend::reference) {
        const Place place = choose_place(settings_.options);
        space_ = space_of(place.hardware, settings_.options);
    }
    if (settings_.kernel_time) {
        if (space_.is_host()) {
            throw Error("kernel time was asked for on the host; allowed is a GPU.");
        }
        kernel_clock_.emplace();
    }
}

Row Runner::prepared(const cost::Shape& shape, const std::string& direction) const
{
    const bool backward = direction == "backward";
    const cost::Flops flops = cost::flops(shape);
    Row row;
    row.direction = direction;
    row.dtype = name_of(settings_.dtype);
    row.shape = shape.name();
    row.model = shape.model;
    row.flops = backward ? flops.backward : flops.forward;
    row.least_bytes = cost::least_traffic(shape, settings_.dtype, backward).total();
    return row;
}

void Runner::run(const cost::Shape& shape, const OnStart& on_start, const OnRow& on_row)
{
    on_start(shape.name());
    std::optional<BenchCase> bench;
    Failure failure;
    try {
        bench.emplace(shape, settings_.dtype, settings_.options, space_);
    } catch (...) {
        failure.take_thrown("out of memory: the tensors do not fit.");
    }
    for (const std::string& direction : settings_.directions) {
        if (direction == "backward" && (shape.forward_alone || shape.is_cache())) {
            continue; // caches have no gradients
        }
        Row row = prepared(shape, direction);
        on_start(row.name());
        row.implementation = "flashomp";
        static_cast<Failure&>(row) = failure;
        if (!bench) {
            on_row(row);
            continue;
        }
        std::optional<Expected> expected; // takes longer than most calls: once for both
        run_flashomp(*bench, expected, row, on_row);
        if (settings_.beside_standard && has_standard() && has_standard_attention(shape)) {
            on_start(row.name() + ", standard attention");
            row.implementation = "standard";
            run_standard(*bench, expected, row, on_row);
        }
    }
}

void say_where(const Report& report, Row& row)
{
    row.backend = report.backend;
    row.machine = report.machine;
    row.ran_on = report.ran_on;
    row.on_device = report.on_device;
    row.tuned = report.tuned;
    row.extra_bytes = report.extra_bytes;
    row.standard_bytes = report.standard_bytes;
}

void check_and_time(BenchCase& bench, std::optional<Expected>& expected, const std::function<void()>& time, Row& row)
{
    const bool backward = row.direction == "backward";
    if (!expected) {
        expected = bench::expected(bench, backward);
    }
    // Standard attention is what others are set beside, and rounds as they do not.
    const Rule rule = row.implementation == "standard" ? Rule::wide : Rule::strict;
    row.accuracy = check(bench, backward, *expected, rule);
    if (!row.accuracy.is_good()) {
        row.failure = row.accuracy.text();
        row.is_wrong = true;
        return;
    }
    bench.poison_outputs(backward);
    time();
    row.accuracy = check(bench, backward, *expected, rule);
    row.accuracy.after_timing = true;
    if (!row.accuracy.is_good()) {
        row.failure = "after the timed calls, " + row.accuracy.text();
        row.is_wrong = true;
    }
}

void Runner::time_kernels(const std::function<void()>& call, Row& row) const
{
    if (!kernel_clock_) {
        return;
    }
    std::vector<double> seconds(static_cast<std::size_t>(row.timing.repetitions));
    std::generate(seconds.begin(), seconds.end(), [&] { return kernel_clock_->seconds_of(call); });
    row.kernel_least = *std::min_element(seconds.begin(), seconds.end());
    row.kernel_most = *std::max_element(seconds.begin(), seconds.end());
    row.kernel_seconds = median(std::move(seconds));
}

std::optional<double> Runner::time_to_queue(BenchCase& bench, const std::function<void()>& call, const Row& row) const
{
    constexpr double longest_call = 1e-3;
    if (space_.kind != Space::Kind::cuda || row.timing.median > longest_call) {
        return {};
    }
    constexpr int repetitions = 9;
    constexpr int calls = 32; // of fewer kernels than a stream takes without waiting
    const BenchCase::Queued queued(bench);
    std::vector<double> seconds;
    for (int i = 0; i <= repetitions; ++i) {
        seconds.push_back(seconds_of([&] {
                              for (int j = 0; j < calls; ++j) {
                                  call();
                              }
                          }) /
                          calls);
        wait_for(space_);
    }
    seconds.erase(seconds.begin()); // gets scratch memory of its own
    return median(std::move(seconds));
}

void Runner::run_flashomp(BenchCase& bench, std::optional<Expected>& expected, Row row, const OnRow& on_row)
{
    const bool backward = row.direction == "backward";
    TimedCall timed(bench, backward, settings_.prepared, space_);
    const auto call = [&] { timed(); };
    try {
        if (settings_.options.backend != Backend::reference) {
            const Hardware hardware = choose_place(settings_.options).hardware;
            const Problem problem =
                as_computed(cost::problem_of(bench.shape(), settings_.dtype, backward, settings_.options), hardware);
            row.tile_bytes = cost::tile_traffic(problem, plan(problem, hardware)).total();
        }
        bench.make_outputs(false);
        if (backward) {
            bench.forward();
        }
        row.peak_bytes = peak_of(bench, backward, space_, call);
        say_where(timed.report(), row);
        const auto time = [&] {
            row.timing = time_calls(row.name(), call, seconds_of(call), settings_.timing);
            row.queue_seconds = time_to_queue(bench, call, row);
            if (space_.is_host() && bench.shape().seqlen_q == 1) { // decoding reads its keys and does little else
                row.copy_bandwidth = cost::copy_bandwidth(settings_.options.threads, row.least_bytes);
                row.read_bandwidth = cost::read_bandwidth(settings_.options.threads);
            }
            time_kernels(call, row); // last: from then on the driver has a listener
        };
        check_and_time(bench, expected, time, row);
    } catch (...) {
        row.take_thrown("out of memory.");
    }
    on_row(row);
}

void Runner::run_standard(BenchCase& bench, std::optional<Expected>& expected, Row row, const OnRow& on_row)
{
    const bool backward = row.direction == "backward";
    const int threads = host_threads(settings_.options.threads);
    row.backend = "standard";
    row.on_device = on_device();
    row.ran_on = on_device() ? choose_place(settings_.options).name : host_name(threads);
    try {
        const double seconds = standard_speed_[row.direction] > 0 ? row.flops / standard_speed_[row.direction] : 0;
        if (seconds > settings_.timing.most_seconds) {
            throw Error(fmt::format("not run: a call would take about {:.0f} s, and the time limit is {:.0f} s.",
                                    seconds, settings_.timing.most_seconds));
        }
        const std::unique_ptr<Standard> made =
            on_device() ? make_standard_cuda(bench, space_) : std::make_unique<StandardAttention>(bench, threads);
        Standard& standard = *made;
        row.machine = standard.machine();
        bench.make_outputs(false);
        if (backward) {
            standard.forward(true);
        }
        const auto call = [&] { backward ? standard.backward() : standard.forward(false); };
        row.peak_bytes = peak_of(bench, backward, space_, call);
        check_and_time(
            bench, expected, [&] { row.timing = time_calls(row.name(), call, seconds_of(call), settings_.timing); },
            row);
        if (row.failure.empty()) {
            standard_speed_[row.direction] = row.flops_per_second();
        }
    } catch (...) {
        row.take_thrown("out of memory.");
    }
    on_row(row);
}

void Runner::only_call(const cost::Shape& shape, int calls)
{
    BenchCase bench(shape, settings_.dtype, settings_.options, space_);
    const bool backward = settings_.directions.front() == "backward";
    bench.make_outputs(false);
    if (backward) {
        bench.forward();
        bench.make_outputs(true);
    }
    TimedCall call(bench, backward, settings_.prepared, space_);
    for (int i = 0; i < calls; ++i) {
        call();
    }
}

} // namespace flashomp::bench
