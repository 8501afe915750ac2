// What every item of a crew reads of its call, in team memory behind the machine's: the stacks of the crew's lanes
// leave little of the L1 cache, and the L2 cache is 300 cycles away.
#pragma once

#include "launch/direct.hpp"
#include "launch/pass.hpp"
#include "nvidia/ptx.hpp"

#pragma omp declare target

namespace flashomp::offload {

struct SharedCall {
    Params params;
    Work work;
};
static_assert(sizeof(SharedCall) <= shared_call_bytes && sizeof(Params) % sizeof(std::uint64_t) == 0);

/// A team's, behind so many bytes of its memory.
FLASHOMP_INLINE SharedCall& shared_call(float* memory, int team_bytes)
{
    return *reinterpret_cast<SharedCall*>(memory + team_bytes / static_cast<int>(sizeof(float)));
}

/// Fills it, by all lanes of the team, who may then read it.
template <int warps>
FLASHOMP_INLINE void share_call(float* memory, int team_bytes, const Call& call)
{
    SharedCall& shared = shared_call(memory, team_bytes);
    const auto* const from = reinterpret_cast<const char*>(&call.params);
    auto* const to = reinterpret_cast<char*>(&shared.params);
    constexpr unsigned step = sizeof(std::uint64_t);
    const unsigned thread = 32 * ptx::warp() + ptx::lane();
    FLASHOMP_UNROLL(1)
    for (unsigned at = thread * step; at < sizeof(Params); at += 32 * warps * step) {
        std::uint64_t word;
        __builtin_memcpy(&word, from + at, step);
        __builtin_memcpy(to + at, &word, step);
    }
    if (thread == 0) {
        shared.work = Work(call.params, call.launch);
    }
    ptx::refetch(); // these are ordinary reads and writes, which the barrier is nothing to for g++
    ptx::barrier<32 * warps>();
    ptx::refetch();
}

} // namespace flashomp::offload

#pragma omp end declare target
