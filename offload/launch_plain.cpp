// The passes on the plain machine: one target region a pass, one parallel region in it, and a loop over the work
// inside (a persistent grid), because each of these costs tens of microseconds on a GPU (docs/offload.md).
#include "fell_back.hpp"
#include "pass.hpp"
#include "tile/plain.hpp"
#include "tile/team_memory.hpp"

#include <omp.h>

namespace flashomp::offload {

static_assert(SummingMachine<PlainMachine>);

#pragma omp declare target
/// What one thread of a crew does: its team's share of the work, together with the others of its team.
template <Pass pass, bool modified>
static void run_share(const Params& params, const Launch& launch, float* memory, int team, int teams)
{
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
    constexpr int unit = 16; // rows
    const std::int64_t all = std::int64_t{params.batch} * params.heads * params.length;
    PlainMachine tile(nullptr, unit, PlainMachine::micro, crew_threads); // needs no memory of its own
    for (std::int64_t first = std::int64_t{team} * unit; first < all; first += std::int64_t{teams} * unit) {
        merge_rows(tile, params, first, all - first < unit ? static_cast<int>(all - first) : unit);
    }
}
#pragma omp end declare target

template <Pass pass, bool modified>
static Ran run_pass(const Params& params, const Launch& launch)
{
    const int device = launch.device >= 0 ? launch.device : omp_get_initial_device();
    FellBack fell_back;
    const FellBackFlag flag = fell_back.flag();
#pragma omp target teams device(device) num_teams(launch.crews) thread_limit(launch.crew_threads)                      \
    firstprivate(params, launch, flag)
    {
        const int team = omp_get_team_num();
        const int teams = omp_get_num_teams();
        float* const memory = launch.needs_memory ? launch.crew_memory + team * launch.crew_floats : team_memory();
#pragma omp parallel num_threads(launch.crew_threads)
        {
            raise_on_host(flag);
            run_share<pass, modified>(params, launch, memory, team, teams);
        }
    }
    return {!fell_back};
}

Ran run_plain(const Params& params, const Launch& launch)
{
    Ran ran;
    for_pass(launch.pass, has_modifications(params),
             [&]<Pass pass, bool modified>() { ran = run_pass<pass, modified>(params, launch); });
    return ran;
}

Ran run_merge(const MergeParams& params, int device, int threads)
{
    const bool on_gpu = device >= 0;
    const int target = on_gpu ? device : omp_get_initial_device();
    const int crew_threads = on_gpu ? 2 : threads;
    const int crews = on_gpu ? 512 : 1;
    FellBack fell_back;
    const FellBackFlag flag = fell_back.flag();
#pragma omp target teams device(target) num_teams(crews) thread_limit(crew_threads) firstprivate(params, flag)
    {
        const int team = omp_get_team_num();
        const int teams = omp_get_num_teams();
#pragma omp parallel num_threads(crew_threads)
        {
            raise_on_host(flag);
            merge_share(params, crew_threads, team, teams);
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
