#include "plan_sharding.hpp"

#include "parse_value.hpp"
#include "plan_facts.hpp"

#include <algorithm>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

namespace flashomp::cli {

namespace {

/// Assumed unless --latency says another: no source stands behind the number.
constexpr double usual_latency = 10e-6;

constexpr double giga = 1e9, micro = 1e-6;

std::string bytes(double amount)
{
    return decimal_text(amount, "B");
}

std::vector<std::int64_t> parse_ranks(const std::string& text)
{
    const std::string allowed =
        fmt::format("whole numbers from 1 to {} with commas between them, such as 2,8,64", cost::most_ranks);
    std::vector<std::int64_t> all;
    std::istringstream parts(text);
    for (std::string part; std::getline(parts, part, ',');) {
        const auto ranks = parse_number<std::int64_t>("--ranks", part, allowed);
        if (ranks < 1 || ranks > cost::most_ranks) {
            refuse_value("--ranks", part, allowed);
        }
        all.push_back(ranks);
    }
    if (all.empty()) {
        refuse_value("--ranks", text, allowed);
    }
    return all;
}

double parse_amount(std::string_view flag, const std::string& text, bool zero_is_allowed, std::string_view allowed)
{
    constexpr double most = 1e9;
    const auto amount = parse_number<double>(flag, text, allowed);
    const bool is_allowed = amount <= most && (amount > 0 || (amount == 0 && zero_is_allowed)); // a NaN is not
    if (!is_allowed) {
        refuse_value(flag, text, allowed);
    }
    return amount;
}

double most_of(const cost::Schedule& schedule, double cost::RankTimes::*what)
{
    double most = 0;
    for (const cost::RankTimes& rank : schedule.ranks) {
        most = std::max(most, rank.*what);
    }
    return most;
}

double sum_of(const cost::Schedule& schedule, double cost::RankTimes::*what)
{
    double sum = 0;
    for (const cost::RankTimes& rank : schedule.ranks) {
        sum += rank.*what;
    }
    return sum;
}

std::string hiding_text(const cost::SharedCall& call)
{
    if (call.scheme.exchanging != cost::Exchanging::ring || call.scheme.places() == 1) {
        return "";
    }
    return call.hiding_rows ? std::to_string(*call.hiding_rows) : std::string("no N");
}

void print_direction(const char* name, const std::vector<cost::SharedCall>& calls)
{
    Table times;
    times.add({fmt::format("{}: time", name), "ranks", "computing", "imbalance", "sending", "waiting", "idle", "in all",
               "of ideal", "ring hides from N"});
    Table amounts;
    amounts.add({fmt::format("{}: most of a rank", name), "ranks", "sent a hop", "sent", "received", "shards",
                 "buffers", "float32 parts", "memory"});
    for (const cost::SharedCall& call : calls) {
        const cost::Schedule& schedule = call.schedule;
        const std::string ranks = std::to_string(call.scheme.ranks);
        times.add({call.scheme.name(), ranks, time_text(most_of(schedule, &cost::RankTimes::computing)),
                   fmt::format("{:.3f}", call.imbalance()), time_text(most_of(schedule, &cost::RankTimes::sending)),
                   time_text(most_of(schedule, &cost::RankTimes::waiting)),
                   time_text(most_of(schedule, &cost::RankTimes::idle)), time_text(schedule.seconds),
                   fmt::format("{:.1f} %", 100 * call.share_of_ideal()), hiding_text(call)});
        amounts.add({call.scheme.name(), ranks, bytes(call.hop_bytes), bytes(most_of(schedule, &cost::RankTimes::sent)),
                     bytes(most_of(schedule, &cost::RankTimes::received)), bytes(call.memory.shards),
                     bytes(call.memory.buffers), bytes(call.memory.partials), bytes(call.memory.total())});
    }
    fmt::print("\n{}\n{}", times.text(), amounts.text());
}

void print_schedule(const char* name, const cost::SharedCall& call)
{
    Table ranks;
    ranks.add({fmt::format("{}, {}", name, call.scheme.name()), "computing", "waiting", "idle", "sending", "sent",
               "received"});
    for (std::size_t i = 0; i < call.schedule.ranks.size(); ++i) {
        const cost::RankTimes& rank = call.schedule.ranks[i];
        ranks.add({fmt::format("rank {}", i), time_text(rank.computing), time_text(rank.waiting), time_text(rank.idle),
                   time_text(rank.sending), bytes(rank.sent), bytes(rank.received)});
    }
    Table phases;
    phases.add({fmt::format("{}, {}", name, call.scheme.name()), "computing, least", "most", "sending, most",
                "waiting, most", "sent by a rank, most", "done at"});
    for (std::size_t i = 0; i < call.schedule.phases.size(); ++i) {
        const cost::Phase& phase = call.schedule.phases[i];
        phases.add({fmt::format("{} {}", i, phase.name), time_text(phase.computing_least),
                    time_text(phase.computing_most), time_text(phase.sending_most), time_text(phase.waiting_most),
                    bytes(phase.bytes), time_text(phase.end)});
    }
    fmt::print("\n{}\n{}", ranks.text(), phases.text());
}

Json schedule_json(const cost::Schedule& schedule)
{
    Json json{{"ranks", Json::array()}, {"phases", Json::array()}};
    for (const cost::RankTimes& rank : schedule.ranks) {
        json["ranks"].push_back({{"computing", rank.computing},
                                 {"waiting", rank.waiting},
                                 {"idle", rank.idle},
                                 {"sending", rank.sending},
                                 {"sent", rank.sent},
                                 {"received", rank.received}});
    }
    for (const cost::Phase& phase : schedule.phases) {
        json["phases"].push_back({{"name", phase.name},
                                  {"bytes", phase.bytes},
                                  {"computing_least", phase.computing_least},
                                  {"computing_most", phase.computing_most},
                                  {"sending_most", phase.sending_most},
                                  {"waiting_most", phase.waiting_most},
                                  {"end", phase.end}});
    }
    return json;
}

Json call_json(const cost::SharedCall& call, bool with_schedule)
{
    const cost::Schedule& schedule = call.schedule;
    const bool is_gather = call.scheme.exchanging == cost::Exchanging::gather;
    Json json{{"scheme", call.scheme.name()},
              {"ranks", call.scheme.ranks},
              {"layout", call.scheme.layout == cost::Layout::zigzag ? "zigzag" : "contiguous"},
              {"heads_ranks", call.scheme.heads_ranks},
              {"gathers", is_gather},
              {"seconds", schedule.seconds},
              {"seconds_of_one_rank", call.alone},
              {"share_of_ideal", call.share_of_ideal()},
              {"imbalance", call.imbalance()},
              {"computing_most", most_of(schedule, &cost::RankTimes::computing)},
              {"sending_most", most_of(schedule, &cost::RankTimes::sending)},
              {"waiting_most", most_of(schedule, &cost::RankTimes::waiting)},
              {"idle_most", most_of(schedule, &cost::RankTimes::idle)},
              {"hop_bytes", call.hop_bytes},
              {"sent_most", most_of(schedule, &cost::RankTimes::sent)},
              {"sent_by_all", sum_of(schedule, &cost::RankTimes::sent)},
              {"hiding_rows", call.hiding_rows ? Json(*call.hiding_rows) : Json()}};
    json["memory"] = {{"shards", call.memory.shards},
                      {"buffers", call.memory.buffers},
                      {"partials", call.memory.partials},
                      {"total", call.memory.total()}};
    if (with_schedule) {
        json["schedule"] = schedule_json(schedule);
    }
    return json;
}

} // namespace

void add_sharding_options(CLI::App& command, PlanFlags& flags)
{
    ShardingFlags& sharding = flags.sharding;
    const char* const group = "Ranks that share the call";
    command
        .add_option_function<std::string>(
            "--ranks", [&sharding](const std::string& text) { sharding.ranks = parse_ranks(text); },
            "also plan for so many ranks, each like this one; several numbers make one table")
        ->type_name("R,R,...")
        ->group(group);
    command
        .add_option_function<std::string>(
            "--interconnect",
            [&sharding](const std::string& text) {
                sharding.interconnect =
                    giga * parse_amount("--interconnect", text, false, "a number above 0 and up to 1e9, in GB/s");
            },
            "with --ranks: what a rank's link carries each way, in 1e9 bytes a second")
        ->type_name("GB/s")
        ->group(group);
    command
        .add_option_function<std::string>(
            "--latency",
            [&sharding](const std::string& text) {
                sharding.latency =
                    micro * parse_amount("--latency", text, true, "a number from 0 to 1e9, in microseconds");
            },
            fmt::format("with --ranks: microseconds of a message without bytes (default {:g}, assumed)",
                        usual_latency / micro))
        ->type_name("US")
        ->group(group);
    command.add_flag("--schedule", sharding.schedule, "with --ranks: every rank and every hop of every scheme, too")
        ->group(group);
}

void require_sharding(const cost::Shape& shape, const ShardingFlags& flags, const PlannedRanks& planned)
{
    if (flags.ranks.empty()) {
        for (const auto& [name, is_given] :
             {std::pair{"--interconnect", flags.interconnect.has_value()},
              std::pair{"--latency", flags.latency.has_value()}, std::pair{"--schedule", flags.schedule}}) {
            if (is_given) {
                throw Error(fmt::format("{} was given without --ranks; it is about ranks that share the call.", name));
            }
        }
        return;
    }
    if (!flags.interconnect) {
        throw Error(fmt::format(
            "{}; the speed of a rank's link in GB/s is needed.",
            planned.count > 0 ? fmt::format("--interconnect was not given for {} ranks", fmt::join(flags.ranks, ", "))
                              : "--ranks was given without --interconnect"));
    }
    for (const std::int64_t ranks : flags.ranks) {
        cost::require_shareable(shape, ranks);
    }
}

ShardingFacts sharding_facts(const PlanFacts& facts, const ShardingFlags& flags, const PlannedRanks& planned)
{
    if (facts.peaks.flops <= 0 || facts.peaks.bandwidth <= 0) {
        throw Error(fmt::format("--ranks was given for {}, whose speeds are not known; allowed are the host and {}.",
                                facts.where, known_device_keys()));
    }
    ShardingFacts sharding;
    sharding.cluster = {
        facts.peaks.flops, facts.peaks.bandwidth, {*flags.interconnect, flags.latency.value_or(usual_latency)}};
    sharding.schedule = flags.schedule;
    const double pairs = cost::counted_pairs(facts.shape) * static_cast<double>(facts.shape.heads_q);
    for (const std::int64_t ranks : flags.ranks) {
        for (const cost::Scheme& scheme : planned.schemes(facts.shape, ranks)) {
            for (const DirectionFacts& direction : facts.directions) {
                const bool backward = direction.name == "backward";
                const double flops_a_pair = pairs > 0 ? direction.executed_flops / pairs : 0;
                (backward ? sharding.backward : sharding.forward)
                    .push_back(cost::share(facts.shape, facts.dtype, backward, flops_a_pair, scheme, sharding.cluster));
            }
        }
    }
    return sharding;
}

void print_sharding(const ShardingFacts& facts)
{
    const cost::Links& links = facts.cluster.links;
    fmt::print("\nranks like this one, each at its peaks, {} each way and {} a message; a model, not measured\n",
               decimal_text(links.bandwidth, "B/s"), time_text(links.latency));
    print_direction("forward", facts.forward);
    print_direction("backward", facts.backward);
    fmt::print("(computing to idle: the most of a rank; imbalance: computing over the mean; of ideal: the time of one "
               "rank alone,\ndivided by the ranks, over the time in all)\n");
    if (facts.schedule) {
        for (std::size_t i = 0; i < facts.forward.size(); ++i) {
            print_schedule("forward", facts.forward[i]);
            print_schedule("backward", facts.backward[i]);
        }
    }
}

Json sharding_json(const ShardingFacts& facts)
{
    Json json{{"interconnect", facts.cluster.links.bandwidth}, {"latency", facts.cluster.links.latency}};
    for (const auto& [name, calls] : {std::pair{"forward", &facts.forward}, std::pair{"backward", &facts.backward}}) {
        json[name] = Json::array();
        for (const cost::SharedCall& call : *calls) {
            json[name].push_back(call_json(call, facts.schedule));
        }
    }
    return json;
}

} // namespace flashomp::cli
