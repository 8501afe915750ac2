#include "plan.hpp"

#include "groups.hpp"
#include "launches.hpp"
#include "machines.hpp"
#include "masks.hpp"
#include "words.hpp"

#include "flashomp/error.hpp"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>

namespace flashomp {

namespace {

using offload::Launch;
using offload::Pass;

/// Rows that lse has in all: one statistic each.
std::int64_t statistic_rows(const Problem& problem)
{
    return problem.lse.elements();
}

/// Rows of k, and of v, in all heads.
std::int64_t key_rows(const Problem& problem)
{
    return problem.k.elements() / std::max<std::int64_t>(1, problem.head_dim);
}

std::int64_t depths(const Problem& problem)
{
    return problem.head_dim + problem.head_dim_v;
}

/// The blocks of packed sequences that exist, costliest first, so that sequences whose lengths differ by orders of
/// magnitude still end together.
std::vector<offload::Unit> packed_units(const Problem& problem, const Launch& launch)
{
    const bool keys = offload::keys_stay(launch.pass);
    std::vector<std::pair<std::int64_t, offload::Unit>> costs;
    for (std::size_t b = 0; b + 1 < problem.starts_q.size(); ++b) {
        const int q_len = problem.starts_q[b + 1] - problem.starts_q[b];
        const int k_len = problem.starts_k[b + 1] - problem.starts_k[b];
        const offload::Band band = band_of(problem, q_len, k_len);
        const int length = keys ? k_len : q_len;
        for (int first = 0; first < length; first += launch.resident_rows) {
            const int last = std::min(length, first + launch.resident_rows);
            const offload::Range range = keys ? band.queries(first, last) : band.keys(first, last);
            costs.push_back({range.end - range.begin, {static_cast<int>(b), first / launch.resident_rows}});
        }
    }
    // Crews wait for the blocks of a sequence that come before theirs: none of those may be drawn later.
    for (std::size_t i = costs.size(); launch.pass == Pass::backward_once && i-- > 1;) {
        if (costs[i - 1].second.batch == costs[i].second.batch) {
            costs[i - 1].first = std::max(costs[i - 1].first, costs[i].first);
        }
    }
    std::stable_sort(costs.begin(), costs.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
    std::vector<offload::Unit> units;
    units.reserve(costs.size());
    for (const auto& [cost, unit] : costs) {
        units.push_back(unit);
    }
    return units;
}

/// Whether the last crew of a block merges what the parts of its keys give (merge_splits.hpp).
bool merges_in_pass(const Problem& problem, const PassPlan& pass, const Hardware& hardware)
{
    constexpr std::int64_t floats_at_once = 4;
    const bool is_tensor = pass.machine == Machine::hopper || pass.machine == Machine::tensor;
    // Crews have one item each only if all of them are there at one time (teams_of()).
    return is_tensor && hardware.backend == Backend::openmp && hardware.multiprocessors > 0 &&
           problem.head_dim_v % floats_at_once == 0;
}

/// Parts to cut the keys into when there are fewer units of work than crews: few queries against long keys. A function
/// of the problem and the kind of hardware, a GPU's teams among it, so that the number of host threads does not change
/// the bits.
int split_count(const Problem& problem, const PassPlan& pass, const Hardware& hardware)
{
    const bool in_pass = merges_in_pass(problem, pass, hardware);
    const std::int64_t fewest_keys = !hardware.is_device ? 1024 : (in_pass ? 256 : 512); // of a part
    constexpr std::int64_t most_queries = 64; // more would make the partial results more than a few rows of memory
    // On a GPU a merge that is a launch of its own takes as long as one crew some 4096 keys.
    const std::int64_t fewest_in_all = hardware.is_device && !in_pass ? 4096 : 2 * fewest_keys;
    const std::int64_t items = block_count(problem, pass);
    if (items == 0 || problem.seqlen_q > most_queries || problem.seqlen_k < fewest_in_all ||
        problem.dtype == DType::float8_e4m3) {
        return 1;
    }
    constexpr std::int64_t for_cuda = 512, for_host = 64;
    const bool is_cuda = hardware.backend == Backend::cuda;
    const std::int64_t wanted = !hardware.is_device ? for_host : (is_cuda ? for_cuda : pass.launch.crews);
    const std::int64_t splits = std::min(wanted / items, problem.seqlen_k / fewest_keys);
    // A second crew on each multiprocessor takes as long to begin and to merge as it reads so many keys.
    constexpr std::int64_t keys_for_two = 1024;
    const std::int64_t alone = hardware.multiprocessors / items;
    const bool too_short = in_pass && splits > alone && problem.seqlen_k < splits * keys_for_two;
    return static_cast<int>(std::clamp<std::int64_t>(too_short ? alone : splits, 1, 512));
}

/// Parts to share a group's query heads out in where the dK/dV pass has fewer key blocks than crews, or under a causal
/// mask, whose blocks differ, than end together: a divisor of the group. Their sums are no more memory than a float32
/// copy of dQ would be.
int head_split_count(const Problem& problem, const PassPlan& pass, const Hardware& hardware)
{
    const std::int64_t wanted = pass.launch.crews * (problem.options.causal == Causal::none ? 1 : 4);
    constexpr std::int64_t floats_at_once = 4;
    const bool draws = pass.machine == Machine::hopper || pass.machine == Machine::tensor;
    if (pass.launch.pass != Pass::backward_key || !draws || hardware.backend != Backend::openmp ||
        problem.head_dim % floats_at_once != 0 || problem.head_dim_v % floats_at_once != 0) {
        return 1;
    }
    const std::int64_t items = std::max<std::int64_t>(1, block_count(problem, pass));
    const std::int64_t most =
        statistic_rows(problem) * problem.head_dim / std::max<std::int64_t>(1, key_rows(problem) * depths(problem));
    const std::int64_t group = problem.heads_q / problem.heads_kv;
    std::int64_t splits = std::min({group, most, (wanted + items - 1) / items});
    while (splits > 1 && group % splits != 0) {
        --splits;
    }
    return static_cast<int>(std::max<std::int64_t>(1, splits));
}

/// Items of work are counted in 32 bits (Work::item()).
void refuse_more_items_than_countable(const Problem& problem, const PassPlan& pass)
{
    constexpr std::int64_t most = 2'000'000'000;
    const std::int64_t blocks = block_count(problem, pass);
    if (blocks > most) {
        throw Error(fmt::format("{} had {} blocks of rows in all sequences and heads; at most {} are allowed.",
                                offload::keys_stay(pass.launch.pass) ? "k" : "q", blocks, most));
    }
}

/// The same before anything is planned, with blocks of as many rows as there may be: numbers of blocks that do not fit
/// 64 bits are not counted, and nothing goes over as many rows.
void refuse_far_more_items_than_countable(const Problem& problem)
{
    constexpr double most = 2e9, most_rows = 1024;
    const auto refuse = [&](const char* name, std::int64_t heads, std::int64_t rows) {
        const double blocks = static_cast<double>(problem.batch) * static_cast<double>(heads) *
                              std::ceil(static_cast<double>(rows) / most_rows);
        if (problem.starts_q.empty() && blocks > most) {
            throw Error(
                fmt::format("{} had {:.0f} blocks of up to {:.0f} rows in all sequences and heads; at most {:.0f} are "
                            "allowed.",
                            name, blocks, most_rows, most));
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
    if (hardware.backend == Backend::cuda && problem.options.machine == Machine::hopper) {
        return false; // automatic where there is a kernel, an error where there is none
    }
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

} // namespace

bool is_one_pass(const Plan& plan)
{
    return std::any_of(plan.passes.begin(), plan.passes.end(),
                       [](const PassPlan& pass) { return pass.launch.pass == Pass::backward_once; });
}

std::int64_t block_count(const Problem& problem, const PassPlan& pass)
{
    const bool keys = offload::keys_stay(pass.launch.pass);
    const std::int64_t rows = keys ? problem.seqlen_k : problem.seqlen_q;
    const std::int64_t blocks = problem.starts_q.empty()
                                    ? (rows + pass.launch.resident_rows - 1) / pass.launch.resident_rows * problem.batch
                                    : static_cast<std::int64_t>(pass.units.size());
    return blocks * (keys ? problem.heads_kv : problem.heads_q);
}

void name_machines(Plan& plan)
{
    plan.machine_name.clear();
    for (const PassPlan& pass : plan.passes) {
        add_name(plan.machine_name, pass);
    }
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
        computed.is_tuned = can_plan(computed, hardware);
        if (!computed.is_tuned) {
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
    for (const Pass pass : passes_of(problem, hardware)) {
        PassPlan planned;
        planned.machine = machine_of(pass, problem, hardware);
        planned.isa = &host_isa_of(problem, hardware);
        planned.launch = launch_of(planned.machine, pass, problem, hardware);
        planned.sums_apart = planned.machine == Machine::tensor && sums_apart(pass, problem, hardware);
        if (!problem.starts_q.empty()) {
            planned.units = packed_units(problem, planned.launch);
            planned.launch.unit_count = static_cast<int>(planned.units.size());
        }
        refuse_more_items_than_countable(problem, planned);
        plan.passes.push_back(std::move(planned));
    }
    name_machines(plan);
    plan.lse_bytes = 4 * statistic_rows(problem);
    plan.row_bytes = problem.is_backward ? 2 * plan.lse_bytes : 0;
    if (!problem.is_backward) {
        plan.splits = split_count(problem, plan.passes.front(), hardware);
        plan.merges = plan.splits > 1 && !merges_in_pass(problem, plan.passes.front(), hardware);
        plan.partial_bytes = plan.splits > 1 ? 4 * plan.splits * statistic_rows(problem) * (problem.head_dim_v + 1) : 0;
    }
    for (PassPlan& pass : plan.passes) {
        const int splits = head_split_count(problem, pass, hardware);
        if (splits > 1) {
            plan.head_splits = splits;
            plan.partial_bytes = 4 * splits * key_rows(problem) * depths(problem);
        }
        const bool has_groups = problem.heads_q > problem.heads_kv;
        if (pass.launch.pass == Pass::backward_key && has_groups &&
            block_count(problem, pass) * splits <= 8 * pass.launch.crews) {
            // So few that a long one begun late is waited for: the longest of all heads first, whatever a cache holds.
            pass.launch.heads_together = static_cast<int>(problem.batch * problem.heads_kv);
        }
    }
    const int threads = needed_threads(problem, plan, hardware.threads);
    for (PassPlan& pass : plan.passes) {
        Launch& launch = pass.launch;
        if (hardware.is_device && hardware.backend == Backend::openmp) {
            launch.crews = needed_teams(problem, pass, plan);
        }
        if (pass.machine == Machine::host) {
            launch.crews = threads;
        }
        if (launch.pass == Pass::backward_once) {
            // Crews at work on one head wait for each other, so as many heads as there are crews, where there are.
            launch.heads_together =
                static_cast<int>(std::clamp<std::int64_t>(launch.crews, 1, problem.batch * problem.heads_kv));
        }
        if (launch.needs_memory) {
            plan.crew_memory_bytes = std::max(plan.crew_memory_bytes, 4 * launch.crews * launch.crew_floats);
        }
    }
    return plan;
}

} // namespace flashomp
