// The words and tables of `flashomp plan`.
#include "plan_facts.hpp"

#include "report.hpp"

#include <algorithm>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace flashomp::cli {

namespace {

const char* pass_name(offload::Pass pass)
{
    switch (pass) {
    case offload::Pass::forward:
        return "forward";
    case offload::Pass::backward_query:
        return "backward, dQ";
    case offload::Pass::backward_key:
        return "backward, dK and dV";
    case offload::Pass::backward_start:
        return "backward, D";
    case offload::Pass::backward_once:
        return "backward, dQ, dK and dV";
    case offload::Pass::backward_end:
        return "backward, dQ of its sums";
    case offload::Pass::backward_bias:
        return "backward, dbias";
    case offload::Pass::backward_sink:
        return "backward, dsink";
    }
    return "";
}

std::string percent(double fraction)
{
    return fmt::format("{:+.1f} %", 100.0 * fraction);
}

std::string bytes(double amount)
{
    return decimal_text(amount, "B");
}

/// What the passes of backward compute more than once.
std::string passes_in_words(const Plan& plan)
{
    if (is_one_pass(plan)) {
        return "one pass, dQ in a fixed order";
    }
    const bool are_apart =
        std::any_of(plan.passes.begin(), plan.passes.end(), [](const PassPlan& pass) { return pass.sums_apart; });
    return are_apart ? "two passes without atomics: dP in both, S for dQ, dV and dK each"
                     : "two passes without atomics: S and dP in both";
}

void print_work(const PlanFacts& facts)
{
    Table table;
    table.add({"work", "FLOPs", ""});
    table.add({"forward", decimal_text(facts.flops.forward, "FLOP"), ""});
    if (!facts.has_backward()) {
        fmt::print("\n{}", table.text());
        return;
    }
    table.add({"backward of standard attention", decimal_text(facts.flops.standard_backward, "FLOP"), ""});
    table.add({"backward, S recomputed", decimal_text(facts.flops.backward, "FLOP"),
               fmt::format("{} of backward, {} of training", percent(facts.flops.extra_of_backward()),
                           percent(facts.flops.extra_of_training()))});
    const DirectionFacts& backward = facts.directions.back();
    table.add({"backward as carried out here", decimal_text(backward.executed_flops, "FLOP"),
               passes_in_words(backward.plan)});
    fmt::print("\n{}", table.text());
    Table kept;
    kept.add({"kept for backward", "a head", "all heads and batch entries"});
    kept.add({"standard attention: P", bytes(facts.saved.standard_per_head), bytes(facts.saved.standard)});
    kept.add({"m and l", bytes(facts.saved.maximum_and_sum_per_head), bytes(facts.saved.maximum_and_sum)});
    kept.add({"here: LSE", bytes(facts.saved.lse_per_head), bytes(facts.saved.lse)});
    fmt::print("\n{}", kept.text());
}

/// Of a pass's blocks. Where few queries have all gradients computed at once, they stay and a crew's part of the keys
/// streams past.
std::string stay_and_stream(const PassPlan& pass)
{
    const offload::Launch& launch = pass.launch;
    return pass.is_gradients_of_few()
               ? fmt::format("{} x {}", launch.stream_rows, launch.resident_rows)
               : fmt::format("{} x {}", launch.resident_rows * pass.heads_on_same_keys(), launch.stream_rows);
}

void print_blocks(const PlanFacts& facts)
{
    Table table;
    table.add({"pass", "machine", "stay x stream", "crews", "threads a crew", "memory of a crew", "traffic"});
    for (const DirectionFacts& direction : facts.directions) {
        for (std::size_t i = 0; i < direction.plan.passes.size(); ++i) {
            const PassPlan& pass = direction.plan.passes[i];
            const offload::Launch& launch = pass.launch;
            table.add({pass_name(launch.pass),
                       cli::name_of(pass.machine) + std::string(direction.is_tuned ? " (tuned)" : ""),
                       stay_and_stream(pass), std::to_string(launch.crews),
                       std::to_string(launch.crew_teams * launch.crew_threads),
                       launch.crew_floats > 0 ? bytes_text(4 * launch.crew_floats) : std::string("fixed when built"),
                       bytes(direction.pass_traffic[i].total())});
        }
    }
    fmt::print("\n{}", table.text());
    const cost::TileBudget& budget = facts.budget;
    Table tile;
    tile.add({"a crew's forward tile", "Q", "K", "V", "S", "O", "statistics", "in all", "of it in registers"});
    tile.add({budget.in_registers == 0        ? "float32"
              : facts.dtype == DType::float32 ? "Q, K, V in float32, K and V in stages"
                                              : "Q, K, V in 16 bits, K and V in stages",
              bytes_text(budget.q), bytes_text(budget.k), bytes_text(budget.v), bytes_text(budget.scores),
              bytes_text(budget.o), bytes_text(budget.statistics), bytes_text(budget.total()),
              budget.in_registers > 0 ? bytes_text(budget.in_registers) : std::string()});
    fmt::print("\n{}", tile.text());
    const cost::OnChip& chip = facts.on_chip;
    if (facts.is_device) {
        fmt::print(
            "on the chip: {} of team-local memory for a team of this build{}, {} of registers a multiprocessor\n",
            bytes_text(chip.team_memory),
            chip.shared_memory > 0 ? fmt::format(", {} of shared memory", bytes_text(chip.shared_memory)) : "",
            bytes_text(chip.registers));
    } else if (facts.fast_memory > 0) {
        fmt::print("on the chip: L1 {} and L2 {} a core, L3 {} in all\n", bytes_text(chip.l1), bytes_text(chip.l2),
                   bytes_text(chip.l3));
    } else {
        fmt::print("on the chip: cache sizes unknown\n");
    }
    if (facts.fast_memory > 0) {
        fmt::print("classic rule, Bc = ceil(M/4d), Br = min(Bc, d), M = {} of float32: {} x {}\n",
                   bytes_text(facts.fast_memory), facts.classic.rows, facts.classic.columns);
    }
}

void print_traffic(const PlanFacts& facts)
{
    Table table;
    table.add({"main-memory traffic", "read", "written", "in all", "of standard"});
    for (const DirectionFacts& direction : facts.directions) {
        const auto row = [&](const char* name, const cost::Traffic& traffic) {
            table.add({fmt::format("{}, {}", direction.name, name), bytes(traffic.read), bytes(traffic.written),
                       bytes(traffic.total()), fmt::format("{:.2g}", traffic.total() / direction.standard.total())});
        };
        row("standard attention", direction.standard);
        row("here, every block at every visit", direction.tiles);
        row("every tensor once", direction.least);
    }
    fmt::print("\n{}", table.text());
    if (facts.fast_memory > 0) {
        fmt::print("orders of growth, in elements: Nd + N^2 = {}, N^2 d^2/M = {}\n",
                   decimal_text(facts.growth.standard, ""), decimal_text(facts.growth.tiles, ""));
    }
}

void print_roofline(const PlanFacts& facts)
{
    if (!facts.directions.front().at_most) {
        fmt::print("\nroofline: the peaks of {} are not known\n", facts.where);
        return;
    }
    const cost::Peaks& peaks = facts.peaks;
    fmt::print("\npeaks: {} ({}); {} ({})\n", decimal_text(peaks.flops, "FLOP/s"), peaks.flops_source,
               decimal_text(peaks.bandwidth, "B/s"), peaks.bandwidth_source);
    Table table;
    table.add({"roofline", "FLOP/B", "ridge", "bound by", "predicted time", "speed as quoted"});
    for (const DirectionFacts& direction : facts.directions) {
        const auto row = [&](const char* name, const cost::Roofline& line) {
            table.add({fmt::format("{}, {}", direction.name, name), fmt::format("{:.1f}", line.intensity),
                       fmt::format("{:.1f}", line.ridge), line.is_memory_bound ? "memory" : "arithmetic",
                       time_text(line.seconds), decimal_text(direction.flops / line.seconds, "FLOP/s")});
        };
        row("every block at every visit", *direction.at_most);
        row("every tensor once", *direction.at_least);
    }
    fmt::print("{}(as if no cache helped, and as if one held everything: no run is faster than the second)\n",
               table.text());
}

void print_model(const PlanFacts& facts)
{
    Table table;
    table.add(
        {"N", "P, a head and layer", "m and l", "LSE", fmt::format("P, {} layers", facts.layers), "m and l", "LSE"});
    for (const cost::ModelSaved& line : facts.model) {
        table.add({std::to_string(line.seqlen), bytes(line.standard_per_head), bytes(line.maximum_and_sum_per_head),
                   bytes(line.lse_per_head), bytes(line.standard), bytes(line.maximum_and_sum), bytes(line.lse)});
    }
    fmt::print("\nkept of attention for backward, {} heads of {}, {} layers, batch {}\n{}", facts.shape.heads_q,
               facts.shape.head_dim, facts.layers, facts.shape.batch, table.text());
    Table ways;
    ways.add({"whole layers", "kept by a layer", fmt::format("peak of {}", facts.layers), "FLOPs", "extra"});
    for (const cost::Checkpointing& way : facts.checkpointing) {
        ways.add({std::string(way.name), bytes(way.layer_bytes), bytes(way.peak_bytes), decimal_text(way.flops, "FLOP"),
                  percent(way.extra_flops)});
    }
    fmt::print("\nactivations of transformer layers in 16 bits, {} tokens a sequence (formulas: docs/algorithm.md)\n{}",
               facts.shape.seqlen_q, ways.text());
}

void print_as_text(const PlanFacts& facts)
{
    fmt::print("{} in {}, on {}\n", facts.shape.name(), flashomp::name_of(facts.dtype), facts.where);
    print_work(facts);
    print_blocks(facts);
    print_traffic(facts);
    print_roofline(facts);
    if (facts.layers > 0) {
        print_model(facts);
    }
    if (facts.sharding) {
        print_sharding(*facts.sharding);
    }
    fmt::print("\nplanned, not run; {}\n", facts.note);
}

Json traffic_json(const cost::Traffic& traffic)
{
    return {{"read", traffic.read}, {"written", traffic.written}, {"total", traffic.total()}};
}

Json roofline_json(const std::optional<cost::Roofline>& line)
{
    if (!line) {
        return {};
    }
    return {{"flops_per_byte", line->intensity},
            {"ridge", line->ridge},
            {"bound", line->is_memory_bound ? "memory" : "arithmetic"},
            {"seconds", line->seconds}};
}

Json direction_json(const DirectionFacts& direction)
{
    Json json;
    json["flops"] = direction.flops;
    json["executed_flops"] = direction.executed_flops;
    json["splits"] = direction.plan.splits;
    json["head_splits"] = direction.plan.head_splits;
    json["tuned"] = direction.is_tuned;
    for (std::size_t i = 0; i < direction.plan.passes.size(); ++i) {
        const PassPlan& pass = direction.plan.passes[i];
        json["passes"].push_back({{"pass", pass_name(pass.launch.pass)},
                                  {"machine", cli::name_of(pass.machine)},
                                  {"resident_rows", pass.launch.resident_rows * pass.heads_on_same_keys()},
                                  {"stream_rows", pass.launch.stream_rows},
                                  {"crews", pass.launch.crews},
                                  {"crew_teams", pass.launch.crew_teams},
                                  {"crew_threads", pass.launch.crew_teams * pass.launch.crew_threads},
                                  {"crew_bytes", 4 * pass.launch.crew_floats},
                                  {"traffic", traffic_json(direction.pass_traffic[i])}});
    }
    json["extra_bytes"] = direction.plan.extra_bytes();
    json["traffic"] = {{"standard", traffic_json(direction.standard)},
                       {"tiles", traffic_json(direction.tiles)},
                       {"least", traffic_json(direction.least)}};
    json["roofline"] = {{"tiles", roofline_json(direction.at_most)}, {"least", roofline_json(direction.at_least)}};
    return json;
}

Json model_json(const PlanFacts& facts)
{
    Json json{{"layers", facts.layers}, {"kept", Json::array()}, {"checkpointing", Json::array()}};
    for (const cost::ModelSaved& line : facts.model) {
        json["kept"].push_back({{"seqlen", line.seqlen},
                                {"standard_per_head", line.standard_per_head},
                                {"maximum_and_sum_per_head", line.maximum_and_sum_per_head},
                                {"lse_per_head", line.lse_per_head},
                                {"standard", line.standard},
                                {"maximum_and_sum", line.maximum_and_sum},
                                {"lse", line.lse}});
    }
    for (const cost::Checkpointing& way : facts.checkpointing) {
        json["checkpointing"].push_back({{"name", way.name},
                                         {"layer_bytes", way.layer_bytes},
                                         {"peak_bytes", way.peak_bytes},
                                         {"flops", way.flops},
                                         {"extra_flops", way.extra_flops}});
    }
    return json;
}

void print_as_json(const PlanFacts& facts)
{
    Json json;
    json["command"] = "plan";
    json["shape"] = facts.shape.name();
    json["window"] = {facts.shape.window.left, facts.shape.window.right};
    json["dtype"] = flashomp::name_of(facts.dtype);
    json["where"] = facts.where;
    json["is_device"] = facts.is_device;
    json["note"] = facts.note;
    json["flops"] = {{"forward", facts.flops.forward}};
    if (facts.has_backward()) {
        json["flops"].update({{"standard_backward", facts.flops.standard_backward},
                              {"backward", facts.flops.backward},
                              {"executed_backward", facts.directions.back().executed_flops},
                              {"extra_of_backward", facts.flops.extra_of_backward()},
                              {"extra_of_training", facts.flops.extra_of_training()}});
        json["kept"] = {{"standard", facts.saved.standard},
                        {"maximum_and_sum", facts.saved.maximum_and_sum},
                        {"lse", facts.saved.lse},
                        {"standard_per_head", facts.saved.standard_per_head},
                        {"maximum_and_sum_per_head", facts.saved.maximum_and_sum_per_head},
                        {"lse_per_head", facts.saved.lse_per_head}};
    }
    const cost::TileBudget& budget = facts.budget;
    json["tile"] = {{"q", budget.q},           {"k", budget.k},
                    {"v", budget.v},           {"scores", budget.scores},
                    {"o", budget.o},           {"statistics", budget.statistics},
                    {"total", budget.total()}, {"in_registers", budget.in_registers}};
    json["fast_memory"] = facts.fast_memory;
    json["classic_blocks"] = {{"rows", facts.classic.rows}, {"columns", facts.classic.columns}};
    json["growth_elements"] = {{"standard", facts.growth.standard}, {"tiles", facts.growth.tiles}};
    json["peaks"] = {{"flops", facts.peaks.flops},
                     {"flops_source", facts.peaks.flops_source},
                     {"bandwidth", facts.peaks.bandwidth},
                     {"bandwidth_source", facts.peaks.bandwidth_source}};
    for (const DirectionFacts& direction : facts.directions) {
        json[direction.name] = direction_json(direction);
    }
    if (facts.layers > 0) {
        json["model"] = model_json(facts);
    }
    if (facts.sharding) {
        json["sharding"] = sharding_json(*facts.sharding);
    }
    json["build"] = build_json();
    print_json(json);
}

} // namespace

void print_plan(const PlanFacts& facts, bool json)
{
    if (json) {
        print_as_json(facts);
    } else {
        print_as_text(facts);
    }
}

} // namespace flashomp::cli
