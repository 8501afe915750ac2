// A pass on a machine that is shared out by directives alone: one target region a pass, one parallel region in it, and
// a loop over the work inside (a persistent grid), because each of these costs tens of microseconds on a GPU
// (docs/offload.md).
#pragma once

#include "algorithm/team_memory.hpp"
#include "launch/pass.hpp"
#include "launch/region.hpp"

#include <omp.h>

namespace flashomp::offload {

#pragma omp declare target
/// What one thread of a crew does: its team's share of the work, together with the others of its team.
template <class Machine, Pass pass, bool modified, class Keys>
// NOLINTNEXTLINE(readability-non-const-parameter): machines write to it
static void run_share(const Call& call, float* memory, int team, int teams)
{
    const Params& params = call.params;
    const Launch& launch = call.launch;
    const Work work(params, launch);
    const Machine tile(memory, launch.resident_rows, launch.stream_rows, launch.crew_threads);
    for (std::int64_t round = 0; round * teams < work.items; ++round) {
        const std::int64_t i = turn(round, team, teams);
        if (i < work.items) {
            run_item<pass, modified, Keys>(tile, params, work, i);
        }
    }
}
#pragma omp end declare target

template <class Machine, Pass pass, bool modified, class Keys>
static Ran run_pass(const Launch& launch, const Call* there)
{
    const int device = launch.device >= 0 ? launch.device : omp_get_initial_device();
    const bool to_device = device != omp_get_initial_device();
    const int crews = launch.crews;
    const int threads = launch.crew_threads;
    FellBack fell_back;
    const FellBackFlag flag = fell_back.flag();
#pragma omp target teams device(device) num_teams(crews) thread_limit(threads) firstprivate(there, flag, to_device)
    {
        const int team = omp_get_team_num();
        const int teams = launched_teams();
#pragma omp parallel num_threads(threads)
        {
            if (is_where_sent(flag, to_device)) {
                const Launch& here = there->launch;
                float* const memory = here.needs_memory ? here.crew_memory + team * here.crew_floats : team_memory();
                run_share<Machine, pass, modified, Keys>(*there, memory, team, teams);
            }
            end_region();
        }
    }
    return {!fell_back};
}

} // namespace flashomp::offload
