// Memory for the teams of GCC's runtime on an NVIDIA GPU. libgomp allocates a structure for every team of every launch
// from the device's heap, one team after the other: with 256 teams that is most of a millisecond (docs/offload.md).
// newlib lets a program replace the allocator below it; this one gives every thread block a piece of a static array.
// Our kernels allocate nothing themselves, and plan() has libgomp launch no more blocks than there are pieces
// (launches past libgomp need none).
#include "algorithm/team_memory.hpp"
#include "launch/region.hpp"

#include <cstddef>
#include <cstdint>

#if defined(__GNUC__) && !defined(__clang__)

#pragma omp declare target

namespace flashomp::offload {

namespace {

constexpr unsigned blocks = 1024;           // as many warps as libgomp keeps stacks for, so never more blocks
constexpr std::uint64_t block_bytes = 8192; // a team of 32 threads takes about 5 KB

struct alignas(16) Piece {
    char bytes[block_bytes];
};

/// %ctaid.x
unsigned this_block()
{
    unsigned block = 0;
    if (is_nvptx()) {
        asm("mov.u32 %0, %%ctaid.x;" : "=r"(block));
    }
    return block;
}

} // namespace

Piece team_arena[blocks];
std::uint64_t team_arena_used[blocks]; // bytes given out; 0 again when the region ends

} // namespace flashomp::offload

// Atomics, because what all lanes of a warp execute g++ makes a single lane do for them. There is no other sharing: a
// block has its piece for itself, and launches of one device follow one another.
extern "C" void* __nvptx_malloc(std::size_t size) // NOLINT: the name is newlib's
{
    using namespace flashomp::offload;
    if (is_nvptx()) {
        const unsigned block = this_block();
        const std::uint64_t bytes = (size + 15) / 16 * 16;
        if (block < blocks && bytes <= block_bytes) {
            const std::uint64_t first = __atomic_fetch_add(&team_arena_used[block], bytes, __ATOMIC_RELAXED);
            if (first + bytes <= block_bytes) {
                return team_arena[block].bytes + first;
            }
        }
    }
    return nullptr; // libgomp stops with "Out of memory allocating ... bytes"
}

/// Nothing is used again before the region ends: a kernel of ours has one parallel region.
extern "C" void __nvptx_free(void* /*memory*/) // NOLINT: the name is newlib's
{
}

namespace flashomp::offload {

int launched_teams()
{
    int teams = omp_get_num_teams();
    if (is_nvptx()) {
        asm("mov.u32 %0, %%nctaid.x;" : "=r"(teams));
    }
    return teams;
}

void end_region()
{
    if (is_nvptx()) {
        const unsigned block = this_block();
        if (block < blocks) {
            team_arena_used[block] = 0; // by every warp: none allocates any more
        }
        asm volatile("exit;");
    }
}

} // namespace flashomp::offload

#pragma omp end declare target

#else

namespace flashomp::offload {

int launched_teams()
{
    return omp_get_num_teams();
}

void end_region() {}

} // namespace flashomp::offload

#endif
