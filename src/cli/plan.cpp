// flashomp plan: what a call would cost and how it would run, without running it.
#include "commands.hpp"
#include "parse_value.hpp"
#include "plan_facts.hpp"
#include "runner.hpp"

#include "place.hpp"

#include "flashomp/version.hpp"

#include <memory>
#include <sstream>
#include <string_view>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

namespace flashomp::cli {

namespace {

constexpr const char* details =
    R"(Before anything runs: FLOPs, bytes kept for the backward pass, the blocks this build would use and what they take
on the chip, main-memory traffic, and the time that the peaks of the machine allow. The host's peaks are measured on
the spot. With --layers, also what a stack of transformer layers keeps, with and without activation checkpoints
(docs/algorithm.md gives the formulas). With --ranks, also what ranks like this one take that share the call, for each
way to share it out: bytes sent, times by a model of computing and sending that is played out hop by hop, and memory.

A shape is bBATCH_hHEADS[kvHEADS]_nSEQLEN[xSEQLEN_K]_dHEAD_DIM[vHEAD_DIM_V][_latent][_causal|_topleft]
[_window[LEFT][xRIGHT]][_softcapC][_alibi][_bias][_dropoutPERCENT][_sink][_blocksPERCENT]
[_varlen|[_pageSIZE][_float8|_int8]]; _latent makes v a view of k's first columns, _causal is bottom-right, _window has
so many keys left and right of a query's own, _bias has one for each head and pair, _dropout drops so many percent,
_blocks keeps so many of the blocks of a block mask, _varlen packs sequences of length SEQLEN/BATCH, 2·SEQLEN/BATCH, ..., SEQLEN, _page
has the keys in pages of a cache, and _float8 and _int8 have them in 8 bits.

Examples:
  flashomp plan --shape b2_h32_n8192_d128_causal --dtype bfloat16 --device h200
  flashomp plan --shape b1_h16_n65536_d64_causal --window 4096,0
  flashomp plan --shape b1_h4_n2048_d64 --json
  flashomp plan --shape b1_h64kv8_n131072_d128 --dtype bfloat16 --layers 80 --seqlens 8192,32768,131072
  flashomp plan --shape b1_h32kv8_n1048576_d128_causal --dtype bfloat16 --device h100 --ranks 8,64,512 --interconnect 50
  flashomp plan --shape b1_h32kv8_n131072_d128_causal --dtype bfloat16 --ranks 4 --interconnect 25 --schedule
)";

std::vector<std::int64_t> parse_seqlens(const std::string& text)
{
    constexpr std::string_view allowed = "whole numbers from 1 to 2^30 with commas between them, such as 2048,131072";
    std::vector<std::int64_t> all;
    std::istringstream parts(text);
    for (std::string part; std::getline(parts, part, ',');) {
        const auto seqlen = parse_number<std::int64_t>("--seqlens", part, allowed);
        if (seqlen < 1 || seqlen > (std::int64_t{1} << 30)) {
            refuse_value("--seqlens", text, allowed);
        }
        all.push_back(seqlen);
    }
    if (all.empty()) {
        refuse_value("--seqlens", text, allowed);
    }
    return all;
}

DirectionFacts direction_facts(const PlanFacts& facts, const Options& options, const Hardware& hardware, bool backward)
{
    DirectionFacts direction;
    direction.name = backward ? "backward" : "forward";
    direction.flops = backward ? facts.flops.backward : facts.flops.forward;
    const Problem problem = as_computed(cost::problem_of(facts.shape, facts.dtype, backward, options), hardware);
    direction.plan = plan(problem, hardware);
    direction.is_tuned = problem.is_tuned;
    for (const PassPlan& pass : direction.plan.passes) {
        direction.pass_traffic.push_back(cost::pass_traffic(problem, pass));
        direction.executed_flops += cost::pass_flops(facts.shape, pass);
    }
    direction.standard = cost::standard_traffic(facts.shape, facts.dtype, backward);
    direction.tiles = cost::tile_traffic(problem, direction.plan);
    direction.least = cost::least_traffic(facts.shape, facts.dtype, backward);
    direction.at_most = cost::roofline(direction.executed_flops, direction.tiles.total(), facts.peaks);
    direction.at_least = cost::roofline(direction.executed_flops, direction.least.total(), facts.peaks);
    return direction;
}

int run_plan(PlanFlags flags, const Runner& runner, const PlannedRanks& ranks)
{
    // One rank has no link, and needs no table unless it is asked for.
    if (flags.sharding.ranks.empty() && (ranks.count > 1 || (ranks.count == 1 && flags.sharding.interconnect))) {
        flags.sharding.ranks.push_back(ranks.count);
    }
    runner.once([&] { print_plan(plan_facts(flags, ranks), flags.run.json); });
    return status_ok;
}

} // namespace

PlanFacts plan_facts(const PlanFlags& flags, const PlannedRanks& ranks)
{
    PlanFacts facts;
    facts.shape = cost::parse_shape(flags.shape);
    if (flags.window.left < -1 || flags.window.right < -1) {
        throw Error(fmt::format("--window was {},{}; each side must be -1 (unbounded), 0 or more.", flags.window.left,
                                flags.window.right));
    }
    if (flags.window != Window{}) {
        facts.shape.window = flags.window;
    }
    facts.dtype = flags.run.dtype.value_or(DType::float32);
    facts.flops = cost::flops(facts.shape);
    facts.saved = cost::saved(facts.shape, facts.dtype);
    if (flags.layers == 0 && !flags.seqlens.empty()) {
        throw Error("--seqlens was given without --layers; both together make the table of a model.");
    }
    if (flags.layers > 0 && facts.shape.is_cache()) {
        throw Error(fmt::format("--layers was {}, and the shape has a cache, whose calls keep nothing for a backward "
                                "pass; allowed are shapes without _page, _float8 and _int8.",
                                flags.layers));
    }
    require_sharding(facts.shape, flags.sharding, ranks);

    Options options = call_options({}, flags.run);
    const KnownDevice* const known = find_known_device(flags.device);
    if (known == nullptr) {
        options.device = parse_device(flags.device);
    }
    const Place place = known == nullptr ? choose_place(options) : place_on(*known, options);
    facts.where = place.name;
    facts.note = place.note;
    facts.is_device = place.hardware.is_device;
    if (!facts.is_device) {
        facts.peaks = cost::host_peaks(place.hardware.threads,
                                       offload::isa_for(*place.hardware.isa, kernel_element(facts.dtype)), facts.dtype);
    } else {
        facts.peaks = cost::device_peaks(place.hardware.gpu.name, facts.dtype);
    }
    facts.on_chip = facts.is_device ? cost::device_on_chip(place.hardware.gpu) : cost::host_on_chip();
    facts.fast_memory = facts.is_device ? facts.on_chip.team_memory : facts.on_chip.l2;

    facts.directions.push_back(direction_facts(facts, options, place.hardware, false));
    if (!facts.shape.is_cache()) {
        facts.directions.push_back(direction_facts(facts, options, place.hardware, true));
    }
    const Problem forward = cost::problem_of(facts.shape, facts.dtype, false, options);
    facts.budget = cost::tile_budget(forward, facts.directions.front().plan.passes.front());
    if (facts.fast_memory > 0) {
        const std::int64_t elements = facts.fast_memory / 4;
        facts.classic = cost::classic_blocks(elements, facts.shape.head_dim);
        facts.growth = cost::growth(facts.shape, static_cast<double>(elements));
    }
    if (flags.layers > 0) {
        facts.layers = flags.layers;
        facts.model = cost::model_table(facts.shape, facts.dtype, flags.layers,
                                        flags.seqlens.empty() ? std::vector{facts.shape.seqlen_q} : flags.seqlens);
        facts.checkpointing = cost::checkpointing(facts.shape, flags.layers);
    }
    if (!flags.sharding.ranks.empty()) {
        facts.sharding = sharding_facts(facts, flags.sharding, ranks);
    }
    return facts;
}

void add_plan_command(CLI::App& app, Command& chosen, const Runner& runner, const PlannedRanks& ranks)
{
    CLI::App* const command = app.add_subcommand("plan", "What a call costs and how it would run, without running it");
    command->footer(details);
    const auto flags = std::make_shared<PlanFlags>();
    command->add_option("--shape", flags->shape, "the problem, such as b2_h16kv4_n4096_d128_causal")
        ->type_name("SHAPE")
        ->required();
    command
        ->add_option_function<std::string>(
            "--window", [flags](const std::string& text) { flags->window = parse_window(text); },
            "keep L keys left and R keys right of the bottom-right diagonal; -1 is unbounded (default -1,-1)")
        ->type_name("L,R");
    command
        ->add_option_function<std::string>(
            "--layers",
            [flags](const std::string& text) {
                constexpr std::string_view allowed = "a whole number from 1 to 1000000";
                flags->layers = parse_number<std::int64_t>("--layers", text, allowed);
                if (flags->layers < 1 || flags->layers > 1000000) {
                    refuse_value("--layers", text, allowed);
                }
            },
            "also tables of a model with this many such layers")
        ->type_name("L");
    command
        ->add_option_function<std::string>(
            "--seqlens", [flags](const std::string& text) { flags->seqlens = parse_seqlens(text); },
            "with --layers: a line for each of these lengths (default: the shape's)")
        ->type_name("N,N,...");
    add_sharding_options(*command, *flags);
    add_run_options(*command, flags->run);
    // A plan may be for a GPU that is not here.
    command->remove_option(command->get_option("--device"));
    command->get_option("--dtype")->description("plan for float32 (default), bfloat16 or float16");
    command
        ->add_option("--device", flags->device,
                     fmt::format("auto (default), host, a GPU's number, or one that is planned for and not looked "
                                 "for: {}",
                                 known_device_keys()))
        ->type_name("WHERE")
        ->group("Where and how it runs");
    command->callback([flags, runner, ranks, &chosen] {
        chosen = [flags, runner, ranks] { return run_plan(*flags, runner, ranks); };
    });
}

} // namespace flashomp::cli
