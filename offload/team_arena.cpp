// Memory for the teams of GCC's runtime on an NVIDIA GPU. libgomp allocates a structure for every team of every launch
// from the device's heap, one team after the other: with 256 teams that is most of a millisecond (docs/offload.md).
// newlib lets a program replace the allocator below it; this one gives every thread block a piece of a static array.
// Our kernels allocate nothing themselves, and plan() launches no more blocks than there are pieces.
#include "tile/team_memory.hpp"

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

} // namespace

Piece team_arena[blocks];
std::uint64_t team_arena_used[blocks]; // bytes given out since the piece was last empty
std::uint64_t team_arena_live[blocks]; // allocations not yet freed

} // namespace flashomp::offload

// Atomics, because what all lanes of a warp execute g++ makes a single lane do for them. There is no other sharing: a
// block has its piece for itself, and launches of one device follow one another.
extern "C" void* __nvptx_malloc(std::size_t size) // NOLINT: the name is newlib's
{
    using namespace flashomp::offload;
    if (is_nvptx()) {
        unsigned block = 0;
        asm("mov.u32 %0, %%ctaid.x;" : "=r"(block));
        const std::uint64_t bytes = (size + 15) / 16 * 16;
        if (block < blocks && bytes <= block_bytes) {
            const std::uint64_t first = __atomic_fetch_add(&team_arena_used[block], bytes, __ATOMIC_RELAXED);
            if (first + bytes <= block_bytes) {
                __atomic_fetch_add(&team_arena_live[block], 1, __ATOMIC_RELAXED);
                return team_arena[block].bytes + first;
            }
        }
    }
    return nullptr; // libgomp stops with "Out of memory allocating ... bytes"
}

extern "C" void __nvptx_free(void* memory) // NOLINT: the name is newlib's
{
    using namespace flashomp::offload;
    const auto offset = reinterpret_cast<std::uintptr_t>(memory) - reinterpret_cast<std::uintptr_t>(team_arena);
    if (offset < sizeof team_arena) {
        const std::uintptr_t block = offset / block_bytes;
        if (__atomic_fetch_sub(&team_arena_live[block], 1, __ATOMIC_RELAXED) == 1) {
            __atomic_store_n(&team_arena_used[block], 0, __ATOMIC_RELAXED);
        }
    }
}

#pragma omp end declare target

#endif
