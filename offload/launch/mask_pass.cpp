// The table of tiles of a pass (mask_tiles.hpp): its size, its place in the parameters, and on the host its contents.
#include "algorithm/mask_tiles.hpp"
#include "launch/launch.hpp"

namespace flashomp::offload {

namespace {

TileTable table_of(const Params& params, const Launch& launch)
{
    return tile_table(params, launch.resident_rows, launch.stream_rows, keys_stay(launch.pass));
}

} // namespace

std::int64_t tile_bytes(const Params& params, const Launch& launch)
{
    return table_of(params, launch).tiles();
}

void set_tiles(Params& params, const Launch& launch, const std::uint8_t* memory)
{
    const TileTable table = table_of(params, launch);
    const std::int64_t of_head = std::int64_t{table.resident_blocks} * table.stream_blocks;
    params.mask.tiles = memory;
    params.mask.tile_columns = table.stream_blocks;
    params.mask.tiles_head = table.heads == 1 ? 0 : of_head;
    params.mask.tiles_batch = table.batches == 1 ? 0 : table.heads * of_head;
}

void fill_tiles(const Params& params, const Launch& launch, int threads)
{
    constexpr std::int64_t few = 16; // rows of tiles that are done before a second thread has begun
    const TileTable table = table_of(params, launch);
    const std::int64_t rows = table.rows();
#pragma omp parallel for num_threads(threads) schedule(dynamic, 4) if (rows > few)
    for (std::int64_t row = 0; row < rows; ++row) {
        for (int block = 0; block < table.stream_blocks; ++block) {
            write_tile(table, row, block);
        }
    }
}

} // namespace flashomp::offload
