// The passes on the plain machine: one target region a pass, one parallel region in it, and a loop over the work
// inside (a persistent grid), because each of these costs tens of microseconds on a GPU (docs/offload.md).
#include "pass.hpp"
#include "region.hpp"
#include "tile/plain.hpp"
#include "tile/team_memory.hpp"

#include <omp.h>

namespace flashomp::offload {

static_assert(SummingMachine<PlainMachine>);

#pragma omp declare target
/// What one thread of a crew does: its team's share of the work, together with the others of its team.
template <Pass pass, bool modified>
static void run_share(const Call& call, float* memory, int team, int teams)
{
    const Params& params = call.params;
    const Launch& launch = call.launch;
    const Work work(params, launch);
    const PlainMachine tile(memory, launch.resident_rows, launch.stream_rows, launch.crew_threads);
    for (std::int64_t round = 0; round * teams < work.items; ++round) {
        const std::int64_t i = turn(round, team, teams);
        if (i < work.items) {
            run_item<pass, modified>(tile, params, work, i);
        }
    }
}

/// The same for a merge. A function of its own: inlined into the parallel region it crashes g++ 12 (ompdevlow).
static void merge_share(const MergeParams& params, int crew_threads, int team, int teams)
{
    PlainMachine tile(nullptr, merge_unit_rows(params), PlainMachine::micro,
                      crew_threads); // needs no memory of its own
    for (std::int64_t unit = team; unit < merge_units(params); unit += teams) {
        merge_rows(tile, params, unit);
    }
}
#pragma omp end declare target

/// The OpenMP number of a launch's device.
static int device_of(int device)
{
    return device >= 0 ? device : omp_get_initial_device();
}

template <Pass pass, bool modified>
static Ran run_pass(const Launch& launch, const Call* there)
{
    const int device = device_of(launch.device);
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
                run_share<pass, modified>(*there, memory, team, teams);
            }
            end_region();
        }
    }
    return {!fell_back};
}

Ran run_plain(const Call& call, Call* there)
{
    Ran ran;
    for_pass(call.launch.pass, has_modifications(call.params),
             [&]<Pass pass, bool modified>() { ran = run_pass<pass, modified>(call.launch, there); });
    return ran;
}

Ran run_merge(const MergeParams* there, std::int64_t units, int device)
{
    constexpr int threads = 4, most = 256; // 1024 warps
    const int crews = units < most ? static_cast<int>(units) : most;
    FellBack fell_back;
    const FellBackFlag flag = fell_back.flag();
#pragma omp target teams device(device) num_teams(crews) thread_limit(threads) firstprivate(there, flag)
    {
        const int team = omp_get_team_num();
        const int teams = launched_teams();
#pragma omp parallel num_threads(threads)
        {
            if (is_where_sent(flag, true)) {
                merge_share(*there, threads, team, teams);
            }
            end_region();
        }
    }
    return {!fell_back};
}

std::int64_t plain_floats(Pass pass, int resident_rows, int stream_rows, int head_dim, int head_dim_v)
{
    return crew_floats<PlainMachine>(pass, resident_rows, stream_rows, head_dim, head_dim_v);
}

std::int64_t team_memory_floats()
{
    return team_memory_bytes / static_cast<int>(sizeof(float));
}

} // namespace flashomp::offload
