// A tensor whose streamed blocks were packed for the host's matrix instructions once, for all the resident blocks that
// they stream past. A kernel finds it where Hopper's copy engine has its map: Tensor::map.
#pragma once

#include "tile/machine.hpp"

#include <cstddef>

namespace flashomp::offload {

struct PackedTensor {
    std::byte* data = nullptr; ///< [batch][head][block of rows], 64-byte aligned
    StreamUse use = StreamUse::both;
    int batches = 0, heads = 0, rows = 0, depth = 0; ///< rows: of one sequence
    int block_rows = 0;
    std::int64_t block_bytes = 0; ///< of any block, whole or not

    [[nodiscard]] FLASHOMP_INLINE int blocks() const { return (rows + block_rows - 1) / block_rows; }
    [[nodiscard]] FLASHOMP_INLINE std::int64_t all_blocks() const { return std::int64_t{batches} * heads * blocks(); }

    /// The block that begins with the first of `of`, which is at a multiple of block_rows.
    [[nodiscard]] FLASHOMP_INLINE std::byte* block(const Rows& of) const
    {
        const std::int64_t head = std::int64_t{of.batch} * heads + of.head;
        return data + (head * blocks() + of.row / block_rows) * block_bytes;
    }
};

} // namespace flashomp::offload
