#include "plan.hpp"

#include "few_queries.hpp"
#include "groups.hpp"
#include "kernel_params.hpp"
#include "machines.hpp"
#include "option_list.hpp"
#include "registry.hpp"
#include "splits.hpp"
#include "words.hpp"

#include "flashomp/error.hpp"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>

namespace flashomp {

namespace {

using offload::Launch;
using offload::Pass;

/// Items of work are counted in 32 bits (Work::item()).
constexpr std::int64_t most_blocks = 2'000'000'000;

void refuse_more_items_than_countable(const Problem& problem, const PassPlan& pass)
{
    const std::int64_t blocks = block_count(problem, pass);
    if (blocks > most_blocks) {
        throw Error(fmt::format("{} had {} blocks of rows in all sequences and heads; at most {} are allowed.",
                                offload::keys_stay(pass.launch.pass) ? "k" : "q", blocks, most_blocks));
    }
}

/// The same before anything is planned, with blocks of as many rows as there may be: numbers of blocks that do not fit
/// 64 bits are not counted, and nothing goes over as many rows.
void refuse_far_more_items_than_countable(const Problem& problem)
{
    constexpr double most_rows = 1024;
    const auto refuse = [&](const char* name, std::int64_t heads, std::int64_t rows) {
        const double blocks = static_cast<double>(problem.batch) * static_cast<double>(heads) *
                              std::ceil(static_cast<double>(rows) / most_rows);
        if (problem.starts_q.empty() && blocks > static_cast<double>(most_blocks)) {
            throw Error(fmt::format("{} had {:.0f} blocks of up to {:.0f} rows in all sequences and heads; at most {} "
                                    "are allowed.",
                                    name, blocks, most_rows, most_blocks));
        }
    };
    refuse("q", problem.heads_q, problem.seqlen_q);
    if (problem.is_backward) {
        refuse("k", problem.heads_kv, problem.seqlen_k);
    }
}

/// No more teams than items of work: 256 take 8 µs to begin and end on an H200, one takes none of it.
int needed_teams(const Problem& problem, const PassPlan& pass, const Plan& plan)
{
    const bool has_blocks = pass.launch.pass != Pass::backward_bias && pass.launch.pass != Pass::backward_sink;
    const bool keys = pass.launch.pass == Pass::backward_key;
    const std::int64_t items = block_count(problem, pass) * (keys ? plan.head_splits : plan.splits);
    return has_blocks ? static_cast<int>(std::clamp<std::int64_t>(items, 1, pass.launch.crews)) : pass.launch.crews;
}

/// Items of work of a host pass (Work::items).
std::int64_t host_items(const Problem& problem, const PassPlan& pass, const Plan& plan)
{
    if (pass.launch.pass == Pass::backward_sink) {
        return problem.heads_q;
    }
    if (pass.launch.pass == Pass::backward_bias) {
        const auto blocks = [&](std::size_t axis, int rows) {
            return (problem.dbias.shape.at(axis) + rows - 1) / rows;
        };
        return problem.dbias.shape[0] * problem.dbias.shape[1] * blocks(2, pass.launch.resident_rows) *
               blocks(3, pass.launch.stream_rows);
    }
    return block_count(problem, pass) * plan.splits;
}

/// No more threads than items of the pass that has the most. All passes have as many: GCC's run time ends what threads
/// a smaller team does not need, and starts them anew for the next.
int needed_threads(const Problem& problem, const Plan& plan, int threads)
{
    std::int64_t items = 1;
    for (const PassPlan& pass : plan.passes) {
        items = std::max(items, host_items(problem, pass, plan));
    }
    return static_cast<int>(std::min<std::int64_t>(items, threads));
}

std::vector<Pass> passes_of(const Problem& problem, const Hardware& hardware)
{
    if (!problem.is_backward) {
        return {Pass::forward};
    }
    std::vector<Pass> passes{Pass::backward_query, Pass::backward_key};
    if (takes_one_pass(problem, hardware)) {
        passes = {Pass::backward_start, Pass::backward_once};
        if (hardware.is_device) {
            passes.push_back(Pass::backward_end);
        }
    }
    if (problem.dbias && problem.dbias.elements() > 0) {
        passes.push_back(Pass::backward_bias);
    }
    if (problem.dsink) {
        passes.push_back(Pass::backward_sink);
    }
    return passes;
}

/// Whether plan(), and what it leaves to dispatch, takes the machine and tiling.
bool can_plan(const Problem& problem, const Hardware& hardware)
{
    try {
        static_cast<void>(plan(problem, hardware));
    } catch (const Error&) {
        return false;
    }
    return true;
}

/// Adds a machine to the names of a plan, once.
void add_name(std::string& names, const PassPlan& pass)
{
    const std::string name = pass.machine == Machine::host ? fmt::format("host-{}", pass.isa->name)
                                                           : std::string(tuning::word_of(pass.machine));
    if (names.find(name) == std::string::npos) {
        names += (names.empty() ? "" : "+") + name;
    }
}

PassPlan planned_pass(Pass pass, const Problem& problem, const Hardware& hardware)
{
    const Kernel& kernel = kernel_for(pass, problem, hardware);
    PassPlan planned;
    planned.kernel = &kernel;
    planned.machine = kernel.machine;
    planned.isa = &host_isa_of(problem, hardware);
    planned.launch = kernel.launch(pass, problem, hardware);
    planned.sums_apart = kernel.machine == Machine::tensor && sums_apart(pass, problem, hardware);
    if (kernel.machine == Machine::tensor && pass == Pass::forward) {
        const int at_once = offload::value_depth(planned.launch.depth);
        planned.value_parts =
            at_once < planned.launch.depth ? static_cast<int>((problem.head_dim_v + at_once - 1) / at_once) : 1;
    }
    if (!problem.starts_q.empty()) {
        planned.units = packed_units(problem, planned.launch);
        planned.launch.unit_count = static_cast<int>(planned.units.size());
    }
    if (has_pair_mask(problem.options) && offload::has_tiles(planned.launch.pass)) {
        planned.tile_bytes = offload::tile_bytes(described_params(problem, hardware), planned.launch);
    }
    return planned;
}

/// The parts of query heads of a dK/dV pass, and how its heads take turns.
void share_out_heads(const Problem& problem, PassPlan& pass, Plan& plan)
{
    if (pass.launch.pass != Pass::backward_key) {
        return;
    }
    const int splits = head_split_count(problem, pass);
    if (splits > 1) {
        plan.head_splits = splits;
        plan.partial_bytes = 4 * splits * key_rows(problem) * (problem.head_dim + problem.head_dim_v);
    }
    const bool has_groups = problem.heads_q > problem.heads_kv;
    if (has_groups && block_count(problem, pass) * splits <= 8 * pass.launch.crews) {
        // So few that a long one begun late is waited for: the longest of all heads first, whatever a cache holds.
        pass.launch.heads_together = static_cast<int>(problem.batch * problem.heads_kv);
    }
}

void set_crews(const Problem& problem, PassPlan& pass, const Hardware& hardware, int threads, const Plan& plan)
{
    Launch& launch = pass.launch;
    if (hardware.is_device && hardware.backend == Backend::openmp) {
        launch.crews = needed_teams(problem, pass, plan);
    }
    if (pass.machine == Machine::host) {
        launch.crews = threads;
    }
    if (pass.machine == Machine::host && launch.pass == Pass::forward) {
        launch.heads_in_block = heads_in_block(problem, hardware, block_count(problem, pass) * plan.splits);
        launch.crew_floats *= launch.heads_in_block; // no piece of them has more than as many times the floats
    }
    if (launch.pass == Pass::backward_once && pass.machine == Machine::host) {
        // Crews at work on one head wait for each other, so as many heads as there are crews, where there are.
        launch.heads_together =
            static_cast<int>(std::clamp<std::int64_t>(launch.crews, 1, problem.batch * problem.heads_kv));
    }
}

/// A launch past libgomp is not waited for where another one follows: that saves some microseconds each.
void await_launches(std::vector<PassPlan>& passes)
{
    const auto is_past_libgomp = [](const PassPlan& pass) {
        return (pass.machine == Machine::hopper || pass.machine == Machine::tensor) && pass.tile_bytes == 0;
    };
    for (std::size_t i = 0; i + 1 < passes.size(); ++i) {
        passes[i].launch.is_awaited = !is_past_libgomp(passes[i]) || !is_past_libgomp(passes[i + 1]);
    }
}

} // namespace

bool is_one_pass(const Plan& plan)
{
    return std::any_of(plan.passes.begin(), plan.passes.end(),
                       [](const PassPlan& pass) { return pass.launch.pass == Pass::backward_once; });
}

offload::Element kernel_element(DType dtype)
{
    switch (dtype) {
    case DType::float8_e4m3: // what o is: the kernel of 8-bit inputs takes no others
    case DType::bfloat16:
        return offload::Element::bfloat16;
    case DType::float16:
        return offload::Element::float16;
    default:
        return offload::Element::float32;
    }
}

Problem as_computed(const Problem& problem, const Hardware& hardware)
{
    Problem computed = with_groups_as_rows(problem);
    if (problem.options.machine != Machine::automatic || problem.options.tiling != Tiling{}) {
        return computed;
    }
    const tuning::Entry* const found = hardware.tuned.find(tuning::class_of(problem, hardware.backend));
    if (found != nullptr && found->choice != tuning::Choice{}) {
        computed.options.machine = found->choice.machine;
        computed.options.tiling = found->choice.tiling;
        computed.is_tuned = true;
        if (!can_plan(computed, hardware)) {
            computed.is_tuned = false;
            computed.options.machine = Machine::automatic;
            computed.options.tiling = {};
        }
    }
    return computed;
}

Plan plan(const Problem& problem, const Hardware& hardware)
{
    refuse_far_more_items_than_countable(problem);
    Plan plan;
    plan.own_score = problem.options.score_mod.kernels;
    for (const Pass pass : passes_of(problem, hardware)) {
        if (pass == Pass::backward_key && plan.passes.back().launch.pass == Pass::backward_once) {
            continue; // the launch before computes dK and dV
        }
        plan.passes.push_back(planned_pass(pass, problem, hardware));
        const PassPlan& planned = plan.passes.back();
        refuse_more_items_than_countable(problem, planned);
        add_name(plan.machine_name, planned);
    }
    plan.lse_bytes = 4 * statistic_rows(problem);
    plan.row_bytes = problem.is_backward ? 2 * plan.lse_bytes : 0;
    if (!problem.is_backward) {
        plan.splits = split_count(problem, plan.passes.front(), hardware);
        plan.merges = plan.splits > 1 && !merges_in_pass(problem, plan.passes.front(), hardware);
        plan.merged_blocks = plan.splits > 1 && !plan.merges ? block_count(problem, plan.passes.front()) : 0;
        plan.partial_bytes = plan.splits > 1 ? 4 * plan.splits * statistic_rows(problem) * (problem.head_dim_v + 1) : 0;
    }
    for (PassPlan& pass : plan.passes) {
        share_out_heads(problem, pass, plan);
    }
    const int threads = needed_threads(problem, plan, hardware.threads);
    for (PassPlan& pass : plan.passes) {
        set_crews(problem, pass, hardware, threads, plan);
        const Launch& launch = pass.launch;
        const std::int64_t for_crews = launch.needs_memory ? 4 * launch.crews * launch.crew_floats : 0;
        const auto workspace_bytes = pass.kernel->workspace_bytes;
        const std::int64_t for_kernel =
            workspace_bytes == nullptr ? 0 : workspace_bytes(launch.pass, problem, hardware);
        plan.crew_memory_bytes = std::max({plan.crew_memory_bytes, for_crews, for_kernel});
        plan.tile_bytes = std::max(plan.tile_bytes, pass.tile_bytes);
    }
    await_launches(plan.passes);
    return plan;
}

} // namespace flashomp
