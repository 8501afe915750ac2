#include "candidates.hpp"

#include <algorithm>

namespace flashomp::bench {

namespace {

using tuning::Choice;

/// The plan of a choice.
Plan plan_of(Problem problem, const Choice& choice, const Hardware& hardware)
{
    problem.options.machine = choice.machine;
    problem.options.tiling = choice.tiling;
    return plan(as_computed(problem, hardware), hardware);
}

bool are_same_blocks(const Plan& a, const Plan& b)
{
    return std::equal(
        a.passes.begin(), a.passes.end(), b.passes.begin(), b.passes.end(), [](const PassPlan& x, const PassPlan& y) {
            return x.launch.resident_rows == y.launch.resident_rows && x.launch.stream_rows == y.launch.stream_rows;
        });
}

std::vector<Choice> host_candidates(const Problem& problem, const Hardware& hardware)
{
    constexpr int fewest_stream_rows = 32, most_stream_rows = 256, fewest_rows = 64;
    const Plan automatic = plan_of(problem, {}, hardware);
    const std::int64_t columns = problem.is_backward ? std::max(problem.seqlen_q, problem.seqlen_k) : problem.seqlen_k;
    std::vector<int> resident{0};
    std::vector<int> stream{0};
    for (int rows = automatic.passes.front().isa->most_rows; problem.is_backward && rows >= fewest_rows; rows /= 2) {
        resident.push_back(rows);
    }
    for (int rows = fewest_stream_rows; rows <= most_stream_rows && rows < 2 * columns; rows *= 2) {
        stream.push_back(rows);
    }
    std::vector<Choice> all{{}};
    for (const int rows : resident) {
        for (const int columns_each : stream) {
            Choice choice;
            choice.tiling.resident_rows = rows;
            choice.tiling.stream_rows = columns_each;
            const Plan decided = plan_of(problem, choice, hardware);
            const bool fits = std::all_of(decided.passes.begin(), decided.passes.end(), [&](const PassPlan& pass) {
                return hardware.core_cache_bytes <= 0 || 4 * pass.launch.crew_floats <= hardware.core_cache_bytes;
            });
            if (fits && !are_same_blocks(decided, automatic)) {
                all.push_back(choice);
            }
        }
    }
    return all;
}

/// The plain machine's ways to share out its work, one changed at a time.
void add_plain(std::vector<Choice>& all, bool is_cuda)
{
    const auto add = [&](const Tiling& tiling) { all.push_back({Machine::plain, tiling}); };
    for (const int resident : {64, 48, 32, 16}) {
        for (const int stream : {64, 32, 16, 8}) {
            add({.resident_rows = resident, .stream_rows = stream});
        }
    }
    for (const int threads : {1, 2, 3, 4, 8}) {
        add({.team_threads = threads});
    }
    if (!is_cuda) {
        add({.global_memory = true});
        add({.resident_rows = 64, .stream_rows = 64, .global_memory = true});
    }
}

std::vector<Choice> device_candidates(const Problem& problem, const Hardware& hardware)
{
    const bool is_cuda = hardware.backend == Backend::cuda;
    const Plan automatic = plan_of(problem, {}, hardware);
    std::vector<Choice> all{{}};
    for (const Machine machine : {Machine::hopper, Machine::tensor, Machine::plain}) {
        if (machine != Machine::hopper || !is_cuda) { // there automatic is the Hopper machine, where that is faster
            all.push_back({machine, {}});
        }
    }
    constexpr int most_teams = 4; // on a multiprocessor
    for (int teams = 1; !is_cuda && hardware.gpu.multiprocessors > 0 && teams <= most_teams; ++teams) {
        all.push_back({Machine::automatic, {.teams = teams * hardware.gpu.multiprocessors}});
    }
    if (std::any_of(automatic.passes.begin(), automatic.passes.end(),
                    [](const PassPlan& pass) { return pass.machine == Machine::plain; })) {
        add_plain(all, is_cuda);
    }
    return all;
}

} // namespace

std::vector<Choice> candidates(const Problem& problem, const Hardware& hardware)
{
    return hardware.is_device ? device_candidates(problem, hardware) : host_candidates(problem, hardware);
}

} // namespace flashomp::bench
