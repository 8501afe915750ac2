#include "regions.hpp"

#include <cstddef>
#include <omp.h>

#ifndef EXPERIMENT_POOL // whether the assembler script declares flashomp_dynamic
#define EXPERIMENT_POOL 0
#endif
#define NO_INLINE __attribute__((noinline, noclone))
#define INLINE inline __attribute__((always_inline))

#pragma omp declare target

namespace experiment {

namespace {

constexpr unsigned blocks = 1024;
constexpr std::uint64_t block_bytes = 8192; // a team of 8 threads takes about 2 KB

struct alignas(16) Piece {
    char bytes[block_bytes];
};

INLINE bool is_nvptx()
{
    return __builtin_acc_on_device(5) != 0;
}

// Special registers; volatile, so that a lane's number is not computed once for all lanes. PTX operands are "r" only,
// and never read and written (docs/offload.md).
#define SPECIAL_REGISTER(name, text)                                                                                   \
    INLINE unsigned name()                                                                                             \
    {                                                                                                                  \
        unsigned value = 0;                                                                                            \
        if (is_nvptx()) {                                                                                              \
            asm volatile("mov.u32 %0, " text ";" : "=r"(value));                                                       \
        }                                                                                                              \
        return value;                                                                                                  \
    }
SPECIAL_REGISTER(block, "%%ctaid.x")
SPECIAL_REGISTER(block_count, "%%nctaid.x")
SPECIAL_REGISTER(warp, "%%tid.y")
SPECIAL_REGISTER(warp_count, "%%ntid.y")
SPECIAL_REGISTER(lane, "%%tid.x")

INLINE std::uint64_t nanoseconds()
{
    std::uint64_t value = 0;
    if (is_nvptx()) {
        asm volatile("mov.u64 %0, %%globaltimer;" : "=r"(value));
    }
    return value;
}

} // namespace

/// The block's arena, in static shared memory. One copy for all regions.
NO_INLINE unsigned* arena_of_block()
{
    std::uint64_t address = 0;
    if (is_nvptx()) {
        asm volatile("{ .shared .align 8 .b8 experiment_arena[8]; .reg .u64 a; mov.u64 a, experiment_arena;"
                     " cvta.shared.u64 %0, a; }"
                     : "=r"(address));
    }
    return reinterpret_cast<unsigned*>(address);
}

/// Dynamic shared memory, as an address of the shared state space. One copy, as every kernel is charged with it.
NO_INLINE unsigned pool_address()
{
    unsigned address = 0;
#if EXPERIMENT_POOL
    if (is_nvptx()) {
        asm volatile("mov.u32 %0, flashomp_dynamic;" : "=r"(address));
    }
#endif
    return address;
}

Piece arena_pieces[arenas * blocks];
std::uint64_t arena_used[arenas * blocks];

namespace {

// Without a region's choice, as in a kernel that does not enter GCC's run time, the number is whatever was there.
INLINE unsigned piece_number()
{
    return *arena_of_block() % arenas * blocks + block() % blocks;
}

INLINE void choose_arena(int arena)
{
    if (is_nvptx()) {
        *arena_of_block() = static_cast<unsigned>(arena);
    }
}

INLINE void end_region()
{
    if (is_nvptx()) {
        arena_used[piece_number()] = 0;
        asm volatile("exit;");
    }
}

} // namespace

} // namespace experiment

extern "C" void* __nvptx_malloc(std::size_t size) // NOLINT: the name is newlib's
{
    using namespace experiment;
    if (is_nvptx()) {
        const unsigned piece = piece_number();
        const std::uint64_t bytes = (size + 15) / 16 * 16;
        const std::uint64_t first = __atomic_fetch_add(&arena_used[piece], bytes, __ATOMIC_RELAXED);
        if (first + bytes <= block_bytes) {
            return arena_pieces[piece].bytes + first;
        }
    }
    return nullptr;
}

extern "C" void __nvptx_free(void* /*memory*/) // NOLINT: the name is newlib's
{
}

#pragma omp end declare target

namespace experiment {

void bare()
{
#pragma omp target
    {
    }
}

template <int warps>
void empty(int teams, int arena)
{
#pragma omp target teams num_teams(teams) thread_limit(warps) firstprivate(arena)
    {
        choose_arena(arena);
#pragma omp parallel num_threads(warps)
        {
            end_region();
        }
    }
}

template <int warps>
void affine(int teams, int arena, Call* there)
{
#pragma omp target teams num_teams(teams) thread_limit(warps) firstprivate(arena, there)
    {
        choose_arena(arena);
#pragma omp parallel num_threads(warps)
        {
            if (is_nvptx()) {
                const unsigned first = block() * warp_count() + warp();
                const unsigned step = block_count() * warp_count();
                for (unsigned i = first; i < static_cast<unsigned>(there->n); i += step) {
                    there->y[i] = there->factor * there->x[i] + static_cast<float>(i);
                }
                there->out[first] = (std::uint64_t{block()} << 32) + (warp() << 16) + warp_count();
            }
            end_region();
        }
    }
}

template <int warps>
void runtime(int teams, int arena, Call* there)
{
#pragma omp target teams num_teams(teams) thread_limit(warps) firstprivate(arena, there)
    {
        choose_arena(arena);
        const int team = omp_get_team_num();
#pragma omp parallel num_threads(warps)
        {
#pragma omp for
            for (int i = 0; i < there->n; ++i) {
                if (team == 0) {
                    there->y[i] = there->factor * there->x[i] - static_cast<float>(i);
                }
            }
#pragma omp barrier
            there->out[team * warps + omp_get_thread_num()] = (static_cast<std::uint64_t>(team) << 32) +
                                                              (static_cast<unsigned>(omp_get_thread_num()) << 16) +
                                                              static_cast<unsigned>(omp_get_num_threads());
            end_region();
        }
    }
}

template <int warps>
void spin(int teams, int arena, Call* there)
{
#pragma omp target teams num_teams(teams) thread_limit(warps) firstprivate(arena, there)
    {
        choose_arena(arena);
#pragma omp parallel num_threads(warps)
        {
            if (is_nvptx()) {
                const std::uint64_t start = nanoseconds();
                std::uint64_t now = start;
                // Bounded, should the timer stand still.
                for (int round = 0; round < 10000000 && now - start < static_cast<std::uint64_t>(there->nanoseconds);
                     ++round) {
                    now = nanoseconds();
                }
                there->out[2 * block()] = start;
                there->out[2 * block() + 1] = now;
            }
            end_region();
        }
    }
}

template <int warps>
void pool(int teams, int arena, Call* there)
{
#pragma omp target teams num_teams(teams) thread_limit(warps) firstprivate(arena, there)
    {
        choose_arena(arena);
#pragma omp parallel num_threads(warps)
        {
            if (is_nvptx()) {
                const unsigned base = pool_address(), words = there->words, seed = there->seed, team = block();
                const unsigned thread = warp() * 32 + lane();
                // Loops of as many rounds for every lane: no lane leaves before the others.
                for (unsigned first = 0; first < words; first += 32 * warps) {
                    const unsigned i = first + thread;
                    asm volatile("st.shared.u32 [%0], %1;" ::"r"(base + 4 * i), "r"(pool_word(i, team, seed)));
                }
                asm volatile("bar.sync 8, %0;" ::"n"(32 * warps));
                std::uint64_t sum = 0, wrong = 0;
                for (unsigned first = 0; first < words; first += 32 * warps) {
                    const unsigned i = (first + thread + words / 2) % words; // another thread's word
                    unsigned value = 0;
                    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(value) : "r"(base + 4 * i));
                    sum += value;
                    wrong += static_cast<std::uint64_t>(value != pool_word(i, team, seed));
                }
                // A builtin would be done by one lane for all.
                asm volatile("red.global.add.u64 [%0], %1;" ::"r"(there->out + 2 * team), "r"(sum));
                asm volatile("red.global.add.u64 [%0], %1;" ::"r"(there->out + 2 * team + 1), "r"(wrong));
            }
            end_region();
        }
    }
}

template void empty<4>(int, int);
template void empty<8>(int, int);
template void affine<4>(int, int, Call*);
template void affine<8>(int, int, Call*);
template void runtime<8>(int, int, Call*);
template void spin<4>(int, int, Call*);
template void pool<8>(int, int, Call*);

} // namespace experiment
