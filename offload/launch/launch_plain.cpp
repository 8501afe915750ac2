// The passes and the merge on the plain machine.
#include "launch/keys.hpp"
#include "launch/plain_pass.hpp"
#include "plain/sliced_machine.hpp"

namespace flashomp::offload {

static_assert(SummingMachine<PlainMachine>);

#pragma omp declare target
/// What one thread of a crew does for a merge. A function of its own: inlined into the parallel region it crashes g++
/// 12 (ompdevlow).
static void merge_share(const MergeParams& params, int crew_threads, int team, int teams)
{
    PlainMachine tile(nullptr, merge_unit_rows(params), PlainMachine::micro,
                      crew_threads); // needs no memory of its own
    for (std::int64_t unit = team; unit < merge_units(params); unit += teams) {
        merge_rows(tile, params, unit);
    }
}
#pragma omp end declare target

Ran run_plain(const Call& call, Call* there)
{
    if (call.launch.depth > most_plain_depth) {
        return run_sliced(call, there);
    }
    Ran ran;
    for_pass_and_keys(call.params.cache, call.launch.pass, call.params.is_modified,
                      [&]<Pass pass, bool modified, class Keys>() {
                          ran = run_pass<PlainMachine, pass, modified, Keys>(call.launch, there);
                      });
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

std::int64_t plain_floats(Pass pass, int resident_rows, int stream_rows, int head_dim, int head_dim_v, bool is_cache)
{
    if (head_dim <= most_plain_depth && head_dim_v <= most_plain_depth) {
        return crew_floats<PlainMachine>(pass, resident_rows, stream_rows, head_dim, head_dim_v);
    }
    return is_cache ? crew_floats<SlicedMachine<QuantisedKeys>>(pass, resident_rows, stream_rows, head_dim, head_dim_v)
                    : crew_floats<SlicedMachine<StridedKeys>>(pass, resident_rows, stream_rows, head_dim, head_dim_v);
}

std::int64_t team_memory_floats()
{
    return team_memory_bytes / static_cast<int>(sizeof(float));
}

} // namespace flashomp::offload
