// The passes of calls with a mask of any shape on the plain machine, and the table of tiles before each: in builds with
// GPU code a library of its own (kernel_libraries.cpp), since few calls need them.
#include "algorithm/mask_tiles.hpp"
#include "launch/plain_pass.hpp"
#include "plain/masked_machine.hpp"

namespace flashomp::offload {

static_assert(SummingMachine<MaskedMachine>);

#pragma omp declare target
/// A thread's share of a pass's tiles.
static void fill_share(const Call& call, std::int64_t thread, std::int64_t threads)
{
    const TileTable table = tile_table(call.params, call.launch.resident_rows, call.launch.stream_rows,
                                       call.launch.pass == Pass::backward_key);
    for (std::int64_t tile = thread; tile < table.tiles(); tile += threads) {
        write_tile(table, tile / table.stream_blocks, static_cast<int>(tile % table.stream_blocks));
    }
}
#pragma omp end declare target

static Ran fill_tiles_there(const Launch& launch, Call* there)
{
    constexpr int threads = 4, crews = 256; // 1024 warps
    const int device = launch.device;
    FellBack fell_back;
    const FellBackFlag flag = fell_back.flag();
#pragma omp target teams device(device) num_teams(crews) thread_limit(threads) firstprivate(there, flag)
    {
        const int team = omp_get_team_num();
        const int teams = launched_teams();
#pragma omp parallel num_threads(threads)
        {
            if (is_where_sent(flag, true)) {
                const int thread = omp_get_thread_num();
                fill_share(*there, std::int64_t{team} * threads + thread, std::int64_t{teams} * threads);
            }
            end_region();
        }
    }
    return {!fell_back};
}

/// Every pass as one with modified scores, which do what the others do, too.
static Ran run(const Call& call, Call* there)
{
    Ran filled{true};
    if (call.launch.device >= 0 && call.params.mask.tiles != nullptr) { // on the host they are there already
        filled = fill_tiles_there(call.launch, there);
    }
    Ran ran;
    for_pass(call.launch.pass, true, [&]<Pass pass, bool>() {
        ran = run_pass<MaskedMachine, pass, pass != Pass::backward_sink, StridedKeys>(call.launch, there);
    });
    ran.on_device = ran.on_device && filled.on_device;
    return ran;
}

#if FLASHOMP_KERNEL_LIBRARY
extern "C" __attribute__((visibility("default"))) Ran flashomp_run(const Call& call, Call* there)
{
    return run(call, there);
}
#else
bool has_masked_machine()
{
    return true;
}

Ran run_masked(const Call& call, Call* there)
{
    return run(call, there);
}
#endif

} // namespace flashomp::offload
