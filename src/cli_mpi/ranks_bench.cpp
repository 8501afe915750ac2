#include "ranks_bench.hpp"

#include "links.hpp"
#include "sharding_flags.hpp"

#include "host_threads.hpp"
#include "shared_call.hpp"
#include "timing.hpp"
#include "traffic.hpp"
#include "work.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include <fmt/format.h>

namespace flashomp::cli {

namespace {

using bench::BenchCase;

/// What a direction returns, where the case has it.
std::map<std::string, ConstTensorView> results_of(BenchCase& bench, bool backward)
{
    const BackwardArgs args = bench.on_host();
    std::map<std::string, ConstTensorView> results{{"o", args.o}, {"lse", args.lse}};
    if (backward) {
        results.insert({{"dq", args.dq}, {"dk", args.dk}, {"dv", args.dv}});
    }
    return results;
}

std::vector<double> values_of(const ConstTensorView& view)
{
    return io::doubles(io::HostTensor::copy_of(view));
}

/// A direction of a case by one sharding. Backward is given what forward made by the same one.
class SharedDirection {
public:
    SharedDirection(const Ranks& ranks, BenchCase& bench, bool backward, const mpi::Sharding& sharding)
    {
        ranks.together([&] {
            bench.poison_outputs(false);
            forward_.emplace(bench.forward_arguments(), bench.options(), sharding, output_type_of(bench.dtype()));
        });
        first_ = forward_->run();
        forward_->put_together();
        if (!backward) {
            return;
        }
        ranks.together([&] {
            bench.poison_outputs(true);
            backward_.emplace(bench.arguments(), bench.options(), sharding, forward_->o());
        });
        first_ = backward_->run();
        backward_->put_together();
    }

    [[nodiscard]] const mpi::Report& first() const { return first_; } ///< of the call whose results the case has now
    [[nodiscard]] mpi::Report run() const { return backward_ ? backward_->run() : forward_->run(); }
    [[nodiscard]] mpi::Report run_messages() const
    {
        return backward_ ? backward_->run_messages() : forward_->run_messages();
    }
    [[nodiscard]] Shards& shards()
    {
        return backward_ ? static_cast<Shards&>(*backward_) : static_cast<Shards&>(*forward_);
    }

private:
    std::optional<ForwardShards> forward_;
    std::optional<BackwardShards> backward_;
    mpi::Report first_;
};

} // namespace

RanksBench::RanksBench(const Ranks& ranks, const bench::RunSettings& settings, std::vector<mpi::Sharding> shardings)
    : ranks_(ranks), settings_(settings), asked_(std::move(shardings))
{
    const Ranks::Host host = ranks.host();
    const double threads = planned_threads(settings.options.threads);
    devices_ = ranks.sum(std::min(1.0, host.cores / (host.ranks * threads)));
}

std::vector<mpi::Sharding> RanksBench::shardings(const cost::Shape& shape) const
{
    using mpi::Layout;
    using mpi::Scheme;
    if (ranks_.size() == 1) {
        return {};
    }
    if (!asked_.empty()) {
        return asked_;
    }
    std::vector<mpi::Sharding> all;
    for (const Layout layout : {Layout::contiguous, Layout::zigzag}) {
        all.push_back({MPI_COMM_WORLD, layout, Scheme::ring, 0});
        all.push_back({MPI_COMM_WORLD, layout, Scheme::all_gather, 0});
        for (int members = 2; members < ranks_.size() && members <= shape.heads_q; ++members) {
            if (ranks_.size() % members == 0) {
                all.push_back({MPI_COMM_WORLD, layout, Scheme::grid, members});
            }
        }
    }
    if (ranks_.size() <= shape.heads_q) { // has all rows, whatever the layout
        all.push_back({MPI_COMM_WORLD, Layout::contiguous, Scheme::ulysses, 0});
    }
    return all;
}

RanksRow RanksBench::prepared(const cost::Shape& shape, bool backward) const
{
    const cost::Flops flops = cost::flops(shape);
    RanksRow row;
    row.direction = backward ? "backward" : "forward";
    row.dtype = name_of(settings_.dtype);
    row.shape = shape.name();
    row.flops = backward ? flops.backward : flops.forward;
    row.least_bytes = cost::least_traffic(shape, settings_.dtype, backward).total();
    row.implementation = "flashomp-mpi";
    row.ranks = ranks_.size();
    row.devices = devices_;
    return row;
}

RanksBench::Alone RanksBench::alone(BenchCase& bench, bool backward) const
{
    Alone alone{prepared(bench.shape(), backward), {}, {}};
    RanksRow& row = alone.row;
    row.implementation = "flashomp";
    row.scheme = "one rank";
    row.ranks = 1;
    row.devices = 1;
    const auto call = [&] { return backward ? bench.backward() : bench.forward(); };
    try {
        bench.forward();
        const Report report = call();
        bench::say_where(report, row);
        const auto time = [&] { row.timing = bench::time_calls(row.name(), call, report.seconds, settings_.timing); };
        bench::check_and_time(bench, alone.expected, time, row);
        for (const auto& [name, view] : results_of(bench, backward)) {
            alone.results.emplace(name, io::HostTensor::copy_of(view));
        }
    } catch (...) {
        row.take_thrown("out of memory.");
    }
    row.one_rank_seconds = row.computing = row.planned_seconds = row.timing.median;
    return alone;
}

void RanksBench::compare(BenchCase& bench, const Alone& alone, RanksRow& row)
{
    constexpr double both = 2; // each may be off by as much as its bound
    for (const auto& [name, view] : results_of(bench, row.direction == "backward")) {
        const double difference = reference::max_error(values_of(view), io::doubles(alone.results.at(name)));
        row.differences[name] = difference;
        const auto bound = alone.row.accuracy.widest.find(name);
        if (bound != alone.row.accuracy.widest.end() && !(difference <= both * bound->second)) {
            row.failure += fmt::format("{}{} is {:.2e} from that of one rank (bound {:.2e})",
                                       row.failure.empty() ? "" : "; ", name, difference, both * bound->second);
            row.is_wrong = true;
        }
    }
}

RanksBench::Run RanksBench::time_together(const std::function<mpi::Report()>& call) const
{
    const bench::TimingSettings& settings = settings_.timing;
    double once = 0;
    for (int i = 0; i < std::max(settings.warmup, 1); ++i) { // the first says how long a call takes
        once = std::max(ranks_.most(call().seconds), 1e-7);
    }
    Run run;
    run.timing.calls = static_cast<std::int64_t>(std::clamp(std::ceil(settings.least_seconds / once), 1.0, 1e6));
    const double affordable = settings.most_seconds / (once * static_cast<double>(run.timing.calls));
    run.timing.repetitions =
        static_cast<int>(std::clamp(std::floor(affordable), 1.0, static_cast<double>(settings.repetitions)));
    std::vector<double> seconds, computing, waiting;
    for (int repetition = 0; repetition < run.timing.repetitions; ++repetition) {
        double in_all = 0, in_calls = 0, in_waits = 0;
        for (std::int64_t i = 0; i < run.timing.calls; ++i) {
            ranks_.barrier();
            const mpi::Report report = call();
            in_all += ranks_.most(report.seconds);
            in_calls += ranks_.most(report.seconds_computing);
            in_waits += ranks_.most(report.seconds_waiting);
        }
        const auto calls = static_cast<double>(run.timing.calls);
        seconds.push_back(in_all / calls);
        computing.push_back(in_calls / calls);
        waiting.push_back(in_waits / calls);
    }
    run.timing.least = *std::min_element(seconds.begin(), seconds.end());
    run.timing.most = *std::max_element(seconds.begin(), seconds.end());
    run.timing.median = bench::median(seconds);
    run.computing = bench::median(computing);
    run.waiting = bench::median(waiting);
    return run;
}

void RanksBench::add_plan(const BenchCase& bench, const mpi::Sharding& sharding, RanksRow& row) const
{
    const cost::Shape& shape = bench.shape();
    // So fast that one rank takes for all pairs as long as it was measured to take; where ranks share cores, each has
    // its part of that. Main memory takes no time besides.
    constexpr double flops_a_pair = 1;
    const double alone = cost::counted_pairs(shape) * static_cast<double>(shape.heads_q) / row.one_rank_seconds;
    const cost::Cluster cluster{alone * row.devices / row.ranks, std::numeric_limits<double>::infinity(), row.links};
    const cost::SharedCall call = cost::share(shape, settings_.dtype, row.direction == "backward", flops_a_pair,
                                              planned(sharding, row.ranks), cluster);
    row.planned_seconds = call.schedule.seconds;
    row.planned_bytes = 0;
    for (const cost::RankTimes& rank : call.schedule.ranks) {
        row.planned_bytes += rank.sent;
    }
}

RanksRow RanksBench::shared(BenchCase& bench, bool backward, const mpi::Sharding& sharding, const cost::Links& links,
                            Alone& alone) const
{
    RanksRow row = prepared(bench.shape(), backward);
    row.layout = mpi::name_of(sharding.layout);
    row.scheme = mpi::name_of(sharding.scheme);
    row.links = links;
    row.one_rank_seconds = alone.row.one_rank_seconds;
    try {
        SharedDirection call(ranks_, bench, backward, sharding);
        bench::say_where(call.first().last, row);
        row.extra_bytes = call.first().extra_bytes;
        row.standard_bytes = alone.row.standard_bytes;
        row.heads_ranks = call.first().heads_ranks;
        row.bytes_sent = ranks_.sum(call.first().bytes_sent);
        if (row.on_device) {
            row.devices = row.ranks;
        }
        const auto time = [&] {
            call.shards().poison();
            const Run run = time_together([&] { return call.run(); });
            call.shards().put_together();
            row.timing = run.timing;
            row.computing = run.computing;
            row.waiting = run.waiting;
            row.messages = time_together([&] { return call.run_messages(); }).timing.median;
        };
        if (!ranks_.is_first()) {
            if (ranks_.told(false)) {
                time();
            }
            return row;
        }
        bool is_told = false;
        const auto tell = [&](bool is_timed) {
            if (!std::exchange(is_told, true)) {
                static_cast<void>(ranks_.told(is_timed));
            }
        };
        try {
            compare(bench, alone, row);
            if (row.failure.empty()) {
                const auto with_all = [&] {
                    tell(true);
                    time();
                };
                bench::check_and_time(bench, alone.expected, with_all, row);
            }
        } catch (...) {
            tell(false);
            throw;
        }
        tell(false);
        if (row.failure.empty()) {
            compare(bench, alone, row); // what the timed calls left
            add_plan(bench, sharding, row);
        }
    } catch (...) { // all ranks alike, or rank 0 in what it does alone
        row.take_thrown("out of memory.");
    }
    return row;
}

void RanksBench::run(const cost::Shape& shape, const OnRow& on_row) const
{
    std::optional<BenchCase> bench;
    ranks_.together([&] {
        bench.emplace(shape, settings_.dtype, settings_.options, Space{});
        bench->make_outputs(false);
        bench->make_outputs(true);
    });
    const auto block = static_cast<std::int64_t>(size_of(settings_.dtype)) * shape.heads_kv *
                       (shape.head_dim + shape.head_dim_v) * shape.rows_k() / ranks_.size();
    for (const std::string& direction : settings_.directions) {
        const bool backward = direction == "backward";
        Alone by_one{prepared(shape, backward), {}, {}};
        ranks_.once([&] {
            by_one = alone(*bench, backward);
            on_row(by_one.row);
        });
        if (!ranks_.told(by_one.row.failure.empty())) {
            continue;
        }
        const cost::Links links = measured_links(ranks_, block);
        for (const mpi::Sharding& sharding : shardings(shape)) {
            const RanksRow row = shared(*bench, backward, sharding, links, by_one);
            ranks_.once([&] { on_row(row); });
        }
    }
}

} // namespace flashomp::cli
