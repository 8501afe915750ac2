// The pass that computes all gradients of few queries on tensor cores, one target region. A library of its own
// (kernel_libraries.cpp).
#include "launch/direct.hpp"
#include "launch/few_queries_shapes.hpp"
#include "launch/region.hpp"
#include "nvidia/few_queries.hpp"

#include <omp.h>

namespace flashomp::offload {

namespace {

/// In functions' names tools/ptx_report finds it.
template <class Math, int depth, int tiles>
struct FewQueriesKernel : FewQueriesConfig<Math, depth, tiles, few_queries_shape(false, depth, 8 * tiles).warps> {
    enum : int { number = depth / 64 + 4 * tiles + 32 * int{Math::is_bfloat16} }; ///< of its entry
};

} // namespace

#pragma omp declare target
/// What a team does, whoever launched the kernel: parts of the keys, one after the other.
template <class Config>
static __attribute__((noinline, noclone)) void run_team(Call* there)
{
    static_assert(int{Config::memory_bytes} <= team_memory_bytes);
    mark_entry<Config::number, true>();
    if (!is_nvptx()) { // no such instructions on the host: plan() never sends it here
        return;
    }
    const Params& params = there->params;
    const KeyParts parts{key_parts(params, there->launch), params.sums, there->launch.arrivals};
    const std::int64_t items = std::int64_t{params.batch} * params.heads_kv * parts.parts;
    const int teams = launched_teams();
    float* const memory = team_memory();
    for (std::int64_t item = this_block(); item < items; item += teams) {
        FewQueries<Config>(params, parts, item, memory).run();
        ptx::barrier<Config::threads>(); // the next one's queries come where others may still read this one's sums
    }
}
#pragma omp end declare target

namespace {

template <class Config>
Ran run_pass(const Launch& launch, Call* there)
{
    const Entry entry{.number = Config::number, .is_awaited = launch.is_awaited};
    const Direct direct = launch_directly(entry, launch.device, launch.crews, Config::warps, there);
    if (direct.is_there) {
        return {.on_device = true, .failure = direct.failure};
    }
    FellBack fell_back;
    const FellBackFlag flag = fell_back.flag();
    const int teams = launch.crews;
#pragma omp target teams device(launch.device) num_teams(teams) thread_limit(Config::warps) firstprivate(there, flag)
    {
#pragma omp parallel num_threads(Config::warps)
        {
            if (is_where_sent(flag, true)) {
                run_team<Config>(there);
            }
            end_region();
        }
    }
    return {!fell_back};
}

template <class Math>
Ran run_math(const Launch& launch, Call* there)
{
    const int tiles = launch.stream_rows / 8;
    if (launch.depth == 64) {
        return tiles == 1   ? run_pass<FewQueriesKernel<Math, 64, 1>>(launch, there)
               : tiles == 2 ? run_pass<FewQueriesKernel<Math, 64, 2>>(launch, there)
                            : run_pass<FewQueriesKernel<Math, 64, 4>>(launch, there);
    }
    return tiles == 1 ? run_pass<FewQueriesKernel<Math, 128, 1>>(launch, there)
                      : run_pass<FewQueriesKernel<Math, 128, 2>>(launch, there);
}

} // namespace

extern "C" __attribute__((visibility("default"))) Ran flashomp_run(const Call& call, Call* there)
{
    return call.params.element == Element::bfloat16 ? run_math<ptx::BFloat16Math>(call.launch, there)
                                                    : run_math<ptx::Float16Math>(call.launch, there);
}

} // namespace flashomp::offload
