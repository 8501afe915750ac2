// The table of tiles of calls with a mask of any shape, and their passes on the plain machine.
#include "algorithm/mask_tiles.hpp"
#include "kernels.hpp"
#include "launch/keys.hpp"
#include "plain/masked_machine.hpp"
#include "plain_kernel.cuh"

namespace flashomp::cuda {

namespace {

using offload::MaskedMachine;
using offload::TileTable;

constexpr int tile_warps = 4;

__global__ void tiles_kernel(const __grid_constant__ TileTable table)
{
    const std::int64_t threads = std::int64_t{gridDim.x} * gridDim.y * 32 * tile_warps;
    const std::int64_t thread = item_index() * 32 * tile_warps + threadIdx.y * 32 + threadIdx.x;
    for (std::int64_t tile = thread; tile < table.tiles(); tile += threads) {
        offload::write_tile(table, tile / table.stream_blocks, static_cast<int>(tile % table.stream_blocks));
    }
}

} // namespace

int fill_tiles(const Params& params, const Launch& launch, void* stream)
{
    if (params.mask.tiles == nullptr) {
        return cudaSuccess;
    }
    const TileTable table =
        offload::tile_table(params, launch.resident_rows, launch.stream_rows, launch.pass == Pass::backward_key);
    constexpr std::int64_t most = 1024, each = 32 * tile_warps;
    const std::int64_t blocks = std::min(most, (table.tiles() + each - 1) / each);
    return launch_items<tiles_kernel>(blocks, tile_warps, 0, static_cast<cudaStream_t>(stream), table);
}

int run_masked(const Params& params, const Launch& launch, void* stream)
{
    if (const int status = fill_tiles(params, launch, stream); status != cudaSuccess) {
        return status;
    }
    auto* const on = static_cast<cudaStream_t>(stream);
    cudaError_t status = cudaSuccess;
    offload::for_pass_and_keys(params.cache, launch.pass, true, [&]<Pass pass, bool, class Keys>() {
        status = launch_items<plain_kernel<MaskedMachine, pass, pass != Pass::backward_sink, Keys>>(
            Work(params, launch).items, launch.crew_threads, launch.crew_floats * 4, on, params, launch, nullptr);
    });
    return status;
}

} // namespace flashomp::cuda
