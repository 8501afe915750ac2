// The passes over few queries on tensor cores, one target region each. A library of its own (kernel_libraries.cpp).
#include "launch/direct.hpp"
#include "launch/few_queries_shapes.hpp"
#include "launch/keys.hpp"
#include "launch/region.hpp"
#include "nvidia/few_queries_backward.hpp"
#include "nvidia/few_queries_forward.hpp"

#include <omp.h>
#include <type_traits>

namespace flashomp::offload {

namespace {

constexpr FewQueriesShape shape_of(bool backward, int depth, int tiles)
{
    return few_queries_shape(backward, false, depth, 8 * tiles);
}

/// In functions' names tools/ptx_report finds it.
template <class Math, bool backward, int depth, int tiles>
struct FewQueriesKernel : FewQueriesConfig<Math, backward, depth, tiles, shape_of(backward, depth, tiles).warps> {
    enum : int {
        number = depth / 64 + 8 * (tiles + 8 * (int{Math::is_bfloat16} + 2 * int{backward}))
    }; ///< of its entry, where keys are tensors
};

template <class Config, class Source>
constexpr int entry_number()
{
    return int{Config::number} + (std::is_same_v<Source, PagedKeys> ? 512 : 0);
}

} // namespace

#pragma omp declare target
/// A copy of the call behind the machine's memory: a word of the call that nobody has read yet is 500 cycles away, and
/// there are a dozen such places, of 10 000 cycles that few keys take.
template <class Config>
FLASHOMP_INLINE const Call& call_in_team(const Call& call, float* memory)
{
    constexpr unsigned step = sizeof(std::uint64_t);
    static_assert(sizeof(Call) % step == 0 && int{Config::memory_bytes} % 16 == 0);
    static_assert(int{Config::memory_bytes} + sizeof(Call) <= team_memory_bytes);
    const auto* const from = reinterpret_cast<const char*>(&call);
    char* const to = reinterpret_cast<char*>(memory) + int{Config::memory_bytes};
    FLASHOMP_UNROLL(1)
    for (unsigned at = (32 * ptx::warp() + ptx::lane()) * step; at < sizeof(Call); at += Config::threads * step) {
        std::uint64_t word;
        __builtin_memcpy(&word, from + at, step);
        __builtin_memcpy(to + at, &word, step);
    }
    ptx::refetch(); // these are ordinary reads and writes, which the barrier is nothing to for g++
    ptx::barrier<Config::threads>();
    ptx::refetch();
    return *reinterpret_cast<const Call*>(to);
}

/// What a team does, whoever launched the kernel: parts of the keys, one after the other. Source: where keys are, of a
/// forward pass.
template <class Config, class Source>
static __attribute__((noinline, noclone)) void run_team(Call* there)
{
    mark_entry<entry_number<Config, Source>(), true>();
    if (!is_nvptx()) { // no such instructions on the host: plan() never sends it here
        return;
    }
    float* const memory = team_memory();
    const Call& call = call_in_team<Config>(*there, memory);
    const Params& params = call.params;
    const Launch& launch = call.launch;
    const int teams = launched_teams();
    if constexpr (Config::is_backward != 0) {
        const KeyParts parts{key_parts(params, launch), params.sums, launch.arrivals};
        const std::int64_t items = std::int64_t{params.batch} * params.heads_kv * parts.parts;
        for (std::int64_t item = this_block(); item < items; item += teams) {
            FewQueriesBackward<Config>(params, parts, item, memory).run();
            ptx::barrier<Config::threads>(); // the next one's queries come where others may still read this one's sums
        }
    } else {
        const FewQueriesItems items(params, launch);
        const std::int64_t count = items.count();
        for (std::int64_t item = this_block(); item < count; item += teams) {
            FewQueriesForward<Config, Source>(params, launch, items.item(static_cast<int>(item)), memory)
                .run(launch.arrivals);
            ptx::barrier<Config::threads>();
        }
    }
}
#pragma omp end declare target

namespace {

template <class Config, class Source>
Ran run_pass(const Launch& launch, Call* there)
{
    const Entry entry{.number = entry_number<Config, Source>(), .is_awaited = launch.is_awaited};
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
                run_team<Config, Source>(there);
            }
            end_region();
        }
    }
    return {!fell_back};
}

template <class Math, bool backward, int depth, int tiles>
Ran run_kernel(const Call& call, Call* there)
{
    using Config = FewQueriesKernel<Math, backward, depth, tiles>;
    if constexpr (backward) {
        return run_pass<Config, StridedKeys>(call.launch, there);
    } else {
        return with_keys<Pass::forward>(call.params.cache,
                                        [&]<class Source>() { return run_pass<Config, Source>(call.launch, there); });
    }
}

template <class Math, bool backward, int depth>
Ran run_depth(const Call& call, Call* there)
{
    const int tiles = few_tiles(call.launch);
    if constexpr (shape_of(backward, depth, 4).depth > 0) {
        if (tiles == 4) {
            return run_kernel<Math, backward, depth, 4>(call, there);
        }
    }
    if constexpr (shape_of(backward, depth, 2).depth > 0) {
        return tiles == 2 ? run_kernel<Math, backward, depth, 2>(call, there)
                          : run_kernel<Math, backward, depth, 1>(call, there);
    }
    return {}; // plan() never sends it here
}

template <class Math, bool backward>
Ran run_backward_or_forward(const Call& call, Call* there)
{
    return call.launch.depth == 64    ? run_depth<Math, backward, 64>(call, there)
           : call.launch.depth == 128 ? run_depth<Math, backward, 128>(call, there)
                                      : run_depth<Math, backward, 256>(call, there);
}

template <class Math>
Ran run_math(const Call& call, Call* there)
{
    return call.launch.pass == Pass::forward ? run_backward_or_forward<Math, false>(call, there)
                                             : run_backward_or_forward<Math, true>(call, there);
}

} // namespace

extern "C" __attribute__((visibility("default"))) Ran flashomp_run(const Call& call, Call* there)
{
    return call.params.element == Element::bfloat16 ? run_math<ptx::BFloat16Math>(call, there)
                                                    : run_math<ptx::Float16Math>(call, there);
}

} // namespace flashomp::offload
