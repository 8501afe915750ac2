// The passes on the tensor-core machines, one target region a pass like launch_plain.cpp. Compiled once for every kind
// of operands and depth, FLASHOMP_TENSOR_OPERANDS and _DEPTH, with each warp's products (FLASHOMP_HOPPER=0) and with
// the warpgroups' (1). FLASHOMP_MASKED=1: those of calls with a mask.
#include "algorithm/kept_bits.hpp"
#include "algorithm/team_memory.hpp"
#include "launch/direct.hpp"
#include "launch/keys.hpp"
#include "launch/pass.hpp"
#include "launch/region.hpp"
#include "launch/shared_call.hpp"
#include "launch/tile_config.hpp"
#include "nvidia/add_splits.hpp"
#include "nvidia/cluster.hpp"
#include "nvidia/merge_splits.hpp"
#if FLASHOMP_HOPPER
#include "nvidia/once_machine.hpp"
#include "nvidia/paired_machine.hpp"
#else
#include "nvidia/latent_machine.hpp"
#include "nvidia/masked_tensor_machine.hpp"
#include "nvidia/tf32_machine.hpp"
#endif

#include <omp.h>
#include <type_traits>

namespace flashomp::offload {

namespace {

constexpr Operands operands = Operands::FLASHOMP_TENSOR_OPERANDS;

/// Kinds of kernels, in whose functions' names tools/ptx_report finds them.
struct Usual {
    static constexpr TensorShape of(Pass pass, int depth, bool modified)
    {
        return FLASHOMP_HOPPER != 0 ? hopper_shape(operands, pass, depth, modified)
                                    : tensor_shape(operands, pass, depth, modified);
    }
};
struct Masked : Usual {};

#if FLASHOMP_HOPPER
template <class Kind, int depth, class Math, Pass pass, bool modified, int side>
using ConfigOf = HopperConfig<Kind, depth, Math, pass, modified, side>;
template <class Config>
using WithSums = std::conditional_t<int{Config::is_of_sums} != 0, SumsMachine<Config>, OnceMachine<Config>>;
template <class Config>
using OfTeams = std::conditional_t<int{Config::teams} == 2, PairedMachine<Config>, HopperMachine<Config>>;
template <class Kind, class Config>
using MachineOf =
    typename std::conditional_t<int{Config::is_once} + int{Config::is_of_sums} != 0,
                                std::type_identity<WithSums<Config>>, std::type_identity<OfTeams<Config>>>::type;
#else
template <class Kind, int depth, class Math, Pass pass, bool modified, int /*side*/>
using ConfigOf = TileConfig<Kind, depth, Math, pass, modified>;
template <class Config>
using OfAllKeys = std::conditional_t<
    (operands == Operands::tf32), Tf32Machine<Config>,
    std::conditional_t<(int{Config::depth_v} < int{Config::depth}), LatentMachine<Config>, TensorMachine<Config>>>;
template <class Kind, class Config>
using MachineOf = std::conditional_t<std::is_same_v<Kind, Masked>, MaskedTensorMachine<Config>, OfAllKeys<Config>>;
#endif
template <class Kind, int depth, class Math, Pass pass, bool modified, int side = 0>
using Machine = MachineOf<Kind, ConfigOf<Kind, depth, Math, pass, modified, side>>;

struct OneTeam {
    enum : int { number = 1 };
};
struct PairOfTeams {
    enum : int { number = 2 };
};

using FirstMath = std::conditional_t<operands == Operands::tf32, ptx::Tf32Math, ptx::BFloat16Math>;
static_assert(TileMachine<Machine<Usual, FLASHOMP_TENSOR_DEPTH, FirstMath, Pass::forward, false>>);

} // namespace

#pragma omp declare target
/// All lanes of a crew's teams.
template <int warps, int teams>
FLASHOMP_INLINE void crew_barrier()
{
    if constexpr (teams == 1) {
        ptx::barrier<32 * warps>();
    } else {
        ptx::cluster_barrier();
    }
}

/// All items that a crew draws. In a function that calls nothing, not even a 64-bit division: in one that does, wgmma
/// waits for every product, and one that is called for each item saves 200 registers every time.
template <int depth, Pass pass, bool modified, class Math, int side, class Keys, class Kind>
static __attribute__((noinline, noclone)) void run_items(Call& call, const Work& work, float* memory, int crew,
                                                         int crews)
{
    using OneMachine = Machine<Kind, depth, Math, pass, modified, side>;
    constexpr TensorShape shape = Kind::of(pass, depth, modified);
    constexpr int mask_bytes = std::is_same_v<Kind, Masked> ? kept_bytes(shape.resident_rows(), shape.stream_rows) : 0;
    static_assert(FLASHOMP_HOPPER != 0 ||
                  tensor_bytes(shape, operands, pass, depth) + mask_bytes + drawn_bytes <= team_memory_bytes);
    if (!is_nvptx()) { // no such instructions on the host: plan() never sends it here
        return;
    }
#if FLASHOMP_HOPPER
    const Params& params = shared_call(memory, shape.team_bytes).params;
#else
    const Params& params = call.params;
#endif
    // Drawn one ahead, but in backward_once, so that nobody waits for the counter: `place` is for the next item's
    // number, the other place has that of the item at work.
    const std::uint32_t drawn = ptx::shared_address(memory) + shape.team_bytes - drawn_bytes;
    std::uint32_t place = drawn;
    if (ptx::warp() == 0) {
        ptx::store_shared_32(place ^ 4, static_cast<unsigned>(crew));
    }
    crew_barrier<shape.warps, shape.teams>();
    const auto draw = [&]() FLASHOMP_LAMBDA {
        if (side == 0 && ptx::warp() == 0) {
            const unsigned next = static_cast<unsigned>(crews) + __atomic_fetch_add(&call.drawn, 1U, __ATOMIC_RELAXED);
            ptx::store_shared_32(place, next);
            if constexpr (shape.teams == 2) {
                ptx::store_in_team(ptx::address_in_team(place, 1), next);
            }
        }
    };
    for (int item = crew; item < work.items;) {
        if constexpr (pass != Pass::backward_once) {
            draw();
        }
        if constexpr (FLASHOMP_HOPPER == 0 && sums_apart(operands, pass, depth, modified)) {
            OneMachine values(memory);
            backward_key_block<modified, KeySums::values>(values, params, work.item(item));
            OneMachine keys(memory);
            backward_key_block<modified, KeySums::keys>(keys, params, work.item(item));
        } else if constexpr (value_depth(depth) < depth) {
            latent_block<OneMachine, modified, Keys>(memory, params, work.item(item));
        } else {
            run_block<pass, modified, Keys>(OneMachine(memory), params, work.item(item));
        }
        if constexpr (pass == Pass::backward_once) { // not before: others may wait for what it has drawn
            draw();
        }
        if constexpr (pass == Pass::backward_key) {
            if (shape.teams == 2 && params.head_splits > 1) {
                crew_barrier<shape.warps, shape.teams>(); // the other team's sums are written
            }
            if (side == 0 && params.head_splits > 1) {
                // In a register until here, its number would cost the loop over blocks the early loads of statistics.
                const int same = static_cast<int>(bits_of(ptx::load_shared(place ^ 4)));
                finish_splits<shape.warps>(params, work.item(same), shape.resident_rows(),
                                           call.launch.arrivals + same / params.head_splits, place ^ 4);
            }
        }
        crew_barrier<shape.warps, shape.teams>();
        item = static_cast<int>(bits_of(ptx::load_shared(place)));
        place ^= 4;
    }
}

template <int depth, Pass pass, bool modified, class Math, class Keys, class Kind>
FLASHOMP_INLINE void run_share(Call& call, float* memory, int team, int teams)
{
    const Params& params = call.params;
#if FLASHOMP_HOPPER
    for (const void* map : {params.q.map, params.k.map, params.v.map, params.dout.map}) {
        if (map != nullptr) {
            ptx::acquire_map(map);
        }
    }
#endif
    constexpr TensorShape shape = Kind::of(pass, depth, modified);
    static_assert(pass != Pass::forward || shape.teams == 1);
#if FLASHOMP_HOPPER
    share_call<shape.warps>(memory, shape.team_bytes, call);
    const Work& work = shared_call(memory, shape.team_bytes).work;
#else
    const Work work(params, call.launch);
#endif
    if constexpr (shape.teams == 1) {
        run_items<depth, pass, modified, Math, 0, Keys, Kind>(call, work, memory, team, teams);
        if constexpr (pass == Pass::forward) {
            // Not in run_items(), whose registers are all in use: where crews merge, each has one item, that of its
            // number.
            const std::uint32_t place = ptx::shared_address(memory);
            if (call.launch.arrivals != nullptr && team < work.items &&
                is_last<shape.warps>(call.launch.arrivals + team / params.splits, params.splits, place)) {
                merge_splits<shape.warps, shape.resident_rows()>(params, work.item(team), place + 16);
            }
        }
    } else if (team % 2 == 0) {
        run_items<depth, pass, modified, Math, 0, Keys, Kind>(call, work, memory, team / 2, teams / 2);
    } else {
        run_items<depth, pass, modified, Math, 1, Keys, Kind>(call, work, memory, team / 2, teams / 2);
    }
}

/// Of a kernel, in its library.
template <int depth, Pass pass, bool modified, class Math, class Keys>
static constexpr int entry_number()
{
    constexpr int math = std::is_same_v<Math, ptx::BFloat16Math> ? 0 : (std::is_same_v<Math, ptx::Float16Math> ? 1 : 2);
    constexpr int pages = std::is_same_v<Keys, PagedKeys> ? 1 : 0;
    constexpr int number =
        static_cast<int>(pass) + 8 * (static_cast<int>(modified) + 2 * (math + 4 * (pages + 4 * (depth / 64))));
    static_assert(number < most_entries);
    return number;
}

/// What a team does, whoever launched the kernel. Teams: a number's type, by whose name cmake/hopper/as and
/// cmake/nvptx/add_entries know the kernels whose teams are clusters.
template <int depth, Pass pass, bool modified, class Math, class Teams, class Keys, class Kind>
static __attribute__((noinline, noclone)) void run_team(Call* there)
{
    mark_entry<entry_number<depth, pass, modified, Math, Keys>(), false>();
    run_share<depth, pass, modified, Math, Keys, Kind>(*there, team_memory(), this_block(), launched_teams());
}
#pragma omp end declare target

template <int depth, Pass pass, bool modified, class Math, class Teams, class Keys, class Kind>
static Ran run_pass(const Launch& launch, Call* there)
{
    constexpr int warps = Kind::of(pass, depth, modified).warps;
    const int all_teams = launch.crews * Teams::number;
    constexpr int dynamic_bytes =
        FLASHOMP_HOPPER != 0 ? Kind::of(pass, depth, modified).team_bytes + shared_call_bytes + lost_bytes : 0;
    // The static arrays of its teams, in which libgomp has 400 bytes, and the system's KB, in the 228 KB of a
    // multiprocessor, which has the registers of 8 warps.
    static_assert(8 / warps * (dynamic_bytes + 512 + 1024) <= 228 * 1024);
    const Entry entry{.number = entry_number<depth, pass, modified, Math, Keys>(),
                      .dynamic_bytes = dynamic_bytes,
                      .waits = pass == Pass::backward_once,
                      .is_awaited = launch.is_awaited};
    const Direct direct = launch_directly(entry, launch.device, all_teams, warps, there);
    if (direct.is_there) {
        return {.on_device = true, .failure = direct.failure};
    }
    if (FLASHOMP_HOPPER != 0 && launches_directly(launch.device)) { // libgomp would give the kernel no team memory
        constexpr int out_of_memory = 2;
        return {.on_device = true, .failure = out_of_memory};
    }
    FellBack fell_back;
    const FellBackFlag flag = fell_back.flag();
#pragma omp target teams device(launch.device) num_teams(all_teams) thread_limit(warps) firstprivate(there, flag)
    {
#pragma omp parallel num_threads(warps)
        {
            if (is_where_sent(flag, true)) {
                run_team<depth, pass, modified, Math, Teams, Keys, Kind>(there);
            }
            end_region();
        }
    }
    return {!fell_back};
}

/// The kernel that plan() meant.
template <Pass pass, bool modified, class Math>
static Ran run_kind(const Call& call, Call* there)
{
    constexpr int depth = FLASHOMP_TENSOR_DEPTH;
#if FLASHOMP_MASKED
    if constexpr (modified) {
        return {}; // plan() has these on the plain machine
    } else {
        return with_keys<pass>(call.params.cache, [&]<class Keys>() {
            return run_pass<depth, pass, modified, Math, OneTeam, Keys, Masked>(call.launch, there);
        });
    }
#else
    using Teams = std::conditional_t<Usual::of(pass, depth, modified).teams == 2, PairOfTeams, OneTeam>;
    return with_keys<pass, FLASHOMP_HOPPER == 0>(call.params.cache, [&]<class Keys>() {
        return run_pass<depth, pass, modified, Math, Teams, Keys, Usual>(call.launch, there);
    });
#endif
}

template <>
Ran run_tensor_depth<operands, FLASHOMP_TENSOR_DEPTH>(const Call& call, Call* there)
{
    Ran ran;
    const auto run = [&]<Pass pass, bool modified>() {
        if constexpr (Usual::of(pass, FLASHOMP_TENSOR_DEPTH, modified).fragments > 0) {
            if constexpr (operands == Operands::tf32) {
                ran = run_kind<pass, modified, ptx::Tf32Math>(call, there);
            } else {
                ran = call.params.element == Element::bfloat16
                          ? run_kind<pass, modified, ptx::BFloat16Math>(call, there)
                          : run_kind<pass, modified, ptx::Float16Math>(call, there);
            }
        }
    };
    switch (call.launch.pass) {
    case Pass::backward_start:
        run.template operator()<Pass::backward_start, false>();
        break;
    case Pass::backward_once:
        run.template operator()<Pass::backward_once, false>();
        break;
    case Pass::backward_end:
        run.template operator()<Pass::backward_end, false>();
        break;
    default:
        for_pass(call.launch.pass, call.params.is_modified, run);
    }
    return ran;
}

} // namespace flashomp::offload
