// The shapes that the passes over few queries are compiled for (nvidia/few_queries_forward.hpp,
// few_queries_backward.hpp), and plan() may choose.
#pragma once

#include "launch/launch.hpp"

namespace flashomp::offload {

struct FewQueriesShape {
    int depth = 0; ///< 64, 128 or 256; 0: there is no kernel
    int tiles = 0; ///< of 8 queries
    int warps = 0;
    int crews = 0; ///< that a multiprocessor has the registers for, and Hopper's the shared memory
    bool is_backward = false;

    /// Keys of a crew at one time, 16 of each warp.
    [[nodiscard]] constexpr int round() const { return 16 * warps; }
    /// What a part of the keys leaves of dQ.
    [[nodiscard]] constexpr std::int64_t sum_floats() const { return std::int64_t{8} * tiles * depth; }
    /// Queries in shared memory; products are of 16.
    [[nodiscard]] constexpr int rows() const { return tiles > 2 ? 32 : 16; }
    /// Shared memory: two stages of keys and values of each warp, queries and backward dO, two statistics of each row,
    /// forward those of each warp, and 16 bytes.
    [[nodiscard]] constexpr int memory_bytes() const
    {
        return 2 * depth * (2 * 2 * round() + (is_backward ? 2 : 1) * rows()) +
               2 * 4 * rows() * (is_backward ? 1 : warps) + 16;
    }
};

/// Tiles of 8 queries for so many of them.
constexpr int few_tiles(std::int64_t rows)
{
    return rows > 16 ? 4 : (rows > 8 ? 2 : 1);
}

/// Those of a launch.
constexpr int few_tiles(const Launch& launch)
{
    return few_tiles(keys_stay(launch.pass) ? launch.stream_rows : launch.resident_rows * launch.heads_in_block);
}

/// Most queries of all heads in a block.
constexpr int most_few_queries(bool is_backward, bool is_cuda, int depth)
{
    const int most_depth = is_backward && !is_cuda ? 64 : 128; // of 32: accumulators, and O and dO, fill what there is
    return depth <= most_depth ? 32 : 16;
}

/// For so many queries of all heads in a block. A team's static arrays are 48 KB, which shapes of CUDA's need not fit.
constexpr FewQueriesShape few_queries_shape(bool is_backward, bool is_cuda, int depth, std::int64_t rows)
{
    FewQueriesShape shape;
    const int most_depth = is_cuda || !is_backward ? 256 : 128;
    if (depth > most_depth || rows > most_few_queries(is_backward, is_cuda, depth) || rows < 1) {
        return shape;
    }
    shape.is_backward = is_backward;
    shape.depth = depth;
    shape.tiles = few_tiles(rows);
    if (is_cuda) { // crews: launch bounds
        shape.warps = depth > 128 ? 2 : 4;
        if (is_backward) {
            shape.crews = depth == 64 ? (shape.tiles > 2 ? 3 : 4) : (depth == 128 && shape.tiles <= 2 ? 3 : 2);
        } else {
            shape.crews = depth == 64 ? (shape.tiles > 2 ? 3 : 4) : (depth == 128 && shape.tiles > 2 ? 2 : 3);
        }
    } else { // as g++'s code needs registers, and a team's static arrays, of which a multiprocessor has four
        shape.warps = depth == 64 ? 4 : (depth == 128 ? 2 : 1);
        shape.crews = depth == 64 && shape.tiles > 1 ? (shape.tiles > 2 ? 2 : 3) : 4;
    }
    return shape;
}

} // namespace flashomp::offload
