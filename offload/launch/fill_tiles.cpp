// In builds with GPU code a part of each library whose kernels read tables of tiles.
#include "launch/fill_tiles.hpp"

#include "algorithm/mask_tiles.hpp"
#include "algorithm/team_memory.hpp"
#include "launch/region.hpp"

#include <omp.h>

namespace flashomp::offload {

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

Ran fill_tiles_there(const Call& call, Call* there)
{
    if (call.launch.device < 0 || call.params.mask.tiles == nullptr) {
        return {true};
    }
    constexpr int threads = 4, crews = 256; // 1024 warps
    const int device = call.launch.device;
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

} // namespace flashomp::offload
