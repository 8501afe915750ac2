// The target regions that the experiment launches in several ways. Each call's numbers come by one pointer to device
// memory, as in offload/launch.
#pragma once

#include <cstdint>

namespace experiment {

struct Call {
    const float* x;
    float* y;
    std::uint64_t* out; ///< what each region says it saw
    std::int64_t nanoseconds;
    float factor;
    std::int32_t n;
    std::uint32_t words; ///< of dynamic shared memory, a multiple of 32 x warps
    std::uint32_t seed;
};

/// Launches that may run at the same time take different arenas: GCC's run time allocates its teams there.
inline constexpr int arenas = 4;

/// One team, no parallel region.
void bare();
/// A parallel region that does nothing.
template <int warps>
void empty(int teams, int arena);
/// y = factor x + i; out[warp] = block, warp and warps, read from PTX's special registers.
template <int warps>
void affine(int teams, int arena, Call* there);
/// out[team x warps + thread] = what omp_get_* say, after a worksharing loop and a barrier of GCC's run time.
template <int warps>
void runtime(int teams, int arena, Call* there);
/// out[2 team], out[2 team + 1]: the first and the last nanosecond of a team that does nothing for a while.
template <int warps>
void spin(int teams, int arena, Call* there);
/// Fills and reads dynamic shared memory: out[2 team] += words read, out[2 team + 1] += those that are wrong.
template <int warps>
void pool(int teams, int arena, Call* there);

/// Word `i` of team `team` in pool().
constexpr std::uint32_t pool_word(std::uint32_t i, std::uint32_t team, std::uint32_t seed)
{
    return (i * 2654435761U) ^ (team * 40503U + seed);
}

} // namespace experiment
