// The shapes that the pass over few queries is compiled for (nvidia/few_queries.hpp), and plan() may choose.
#pragma once

#include <cstdint>

namespace flashomp::offload {

struct FewQueriesShape {
    int depth = 0; ///< 64, 128 or 256; 0: there is no kernel
    int tiles = 0; ///< of 8 queries
    int warps = 0;
    int crews = 0; ///< that a multiprocessor has the registers for, and Hopper's the shared memory

    /// Keys of a crew at one time, 16 of each warp.
    [[nodiscard]] constexpr int round() const { return 16 * warps; }
    /// What a part of the keys leaves of dQ.
    [[nodiscard]] constexpr std::int64_t sum_floats() const { return std::int64_t{8} * tiles * depth; }
    /// Queries in shared memory, with dO; products are of 16.
    [[nodiscard]] constexpr int rows() const { return tiles > 2 ? 32 : 16; }
    /// Shared memory: two stages of keys and values of each warp, queries, LSE and D, and 16 bytes.
    [[nodiscard]] constexpr int memory_bytes() const
    {
        return 2 * depth * (2 * 2 * round() + 2 * rows()) + 2 * 4 * rows() + 16;
    }
};

/// For so many queries of all heads of a group. A team's static arrays are 48 KB, which shapes of CUDA's need not fit.
constexpr FewQueriesShape few_queries_shape(bool is_cuda, int depth, std::int64_t rows)
{
    FewQueriesShape shape;
    const int most_depth = is_cuda ? 256 : 128, small_depth = is_cuda ? 128 : 64;
    const int most_rows = depth <= small_depth ? 32 : 16;
    if (depth > most_depth || rows > most_rows || rows < 1) {
        return shape;
    }
    shape.depth = depth;
    shape.tiles = rows > 16 ? 4 : (rows > 8 ? 2 : 1);
    shape.warps = depth > small_depth ? 2 : 4;
    if (is_cuda) { // launch bounds
        shape.crews = depth == 64 ? (shape.tiles > 2 ? 3 : 4) : (depth == 128 && shape.tiles <= 2 ? 3 : 2);
    } else { // as g++'s code needs registers: 100, 132, 216; 140, 168
        shape.crews = depth == 64 && shape.tiles > 1 ? (shape.tiles > 2 ? 2 : 3) : 4;
    }
    return shape;
}

} // namespace flashomp::offload
