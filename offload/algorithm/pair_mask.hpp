// Masks of any shape: which pairs (i, j) a dense mask and a block mask keep, and what a pass knows of whole tiles of
// them before it begins (mask_tiles.hpp).
#pragma once

#include "algorithm/params.hpp"

#include <type_traits>

#pragma omp declare target

namespace flashomp::offload {

/// Whether a machine's passes look at PairMask. The others run no call that has one (registry.cpp), and their kernels
/// have no code for it.
template <class Machine>
concept TakesMasks = requires
{
    Machine::takes_masks;
};

/// What is known of a tile of pairs.
enum class TileKind : std::uint8_t { hidden, partial, whole };

/// Blocks of a block mask: number `at` of a partial one, or one of these.
enum : std::int32_t { whole_block = -1, hidden_block = -2 };

/// The mask of one head of one sequence.
FLASHOMP_INLINE PairMask mask_of_head(const PairMask& mask, int batch, int head)
{
    PairMask m = mask;
    m.dense += m.dense == nullptr ? 0 : batch * m.dense_batch + head * m.dense_head;
    m.blocks += m.blocks == nullptr ? 0 : batch * m.blocks_batch + head * m.blocks_head;
    m.tiles += m.tiles == nullptr ? 0 : batch * m.tiles_batch + head * m.tiles_head;
    return m;
}

FLASHOMP_INLINE bool has_mask(const PairMask& mask)
{
    return mask.dense != nullptr || mask.blocks != nullptr;
}

/// In the place of a PairMask on machines that take none: an empty member costs their kernels no register.
struct NoMask {};

template <class Machine>
using MaskOn = std::conditional_t<TakesMasks<Machine>, PairMask, NoMask>;

FLASHOMP_INLINE bool has_mask(const NoMask& /*mask*/)
{
    return false;
}

/// The block that a row or key is in. Blocks of 2^shift rows need no division.
FLASHOMP_INLINE int block_of(int row, int size, int shift)
{
    return shift >= 0 ? row >> shift : static_cast<int>(static_cast<unsigned>(row) / static_cast<unsigned>(size));
}

/// Bit `number` of a row of packed bits: numpy.packbits(..., bitorder="little").
FLASHOMP_INLINE bool bit_of(const std::uint8_t* row, int number)
{
    return ((row[number >> 3] >> (number & 7)) & 1) != 0;
}

FLASHOMP_INLINE bool dense_keeps(const PairMask& mask, int i, int j)
{
    const std::uint8_t* const row = mask.dense + i * mask.dense_query;
    return mask.is_bits ? bit_of(row, j) : row[j * mask.dense_key] != 0;
}

FLASHOMP_INLINE bool blocks_keep(const PairMask& mask, int i, int j)
{
    const int block_i = block_of(i, mask.block_q, mask.shift_q);
    const int block_j = block_of(j, mask.block_k, mask.shift_k);
    const std::int32_t block = mask.blocks[std::int64_t{block_i} * mask.blocks_k + block_j];
    if (block < 0) {
        return block == whole_block;
    }
    const std::int64_t row = std::int64_t{block} * mask.block_q + (i - block_i * mask.block_q);
    return bit_of(mask.block_bits + row * mask.bit_bytes, j - block_j * mask.block_k);
}

/// Whether the masks of one head keep a pair that is there.
FLASHOMP_INLINE bool mask_keeps(const PairMask& mask, int i, int j)
{
    return (mask.dense == nullptr || dense_keeps(mask, i, j)) && (mask.blocks == nullptr || blocks_keep(mask, i, j));
}

FLASHOMP_INLINE bool mask_keeps(const NoMask& /*mask*/, int /*i*/, int /*j*/)
{
    return true;
}

/// What a pass knows of the tiles of one resident block of one head: kind(x) of the block that streams past as number
/// x.
struct TileRow {
    const std::uint8_t* kinds = nullptr; ///< null: nothing
    bool is_masked = false;

    TileRow() = default;
    FLASHOMP_INLINE TileRow(const NoMask& /*mask*/, int /*resident_block*/) {}
    FLASHOMP_INLINE TileRow(const PairMask& mask_of_head, int resident_block)
        : kinds(mask_of_head.tiles == nullptr
                    ? nullptr
                    : mask_of_head.tiles + std::int64_t{resident_block} * mask_of_head.tile_columns),
          is_masked(has_mask(mask_of_head))
    {
    }

    [[nodiscard]] FLASHOMP_INLINE bool is_hidden(int block) const
    {
        return kinds != nullptr && kinds[block] == static_cast<std::uint8_t>(TileKind::hidden);
    }
    [[nodiscard]] FLASHOMP_INLINE bool is_whole(int block) const
    {
        return !is_masked || (kinds != nullptr && kinds[block] == static_cast<std::uint8_t>(TileKind::whole));
    }
};

} // namespace flashomp::offload

#pragma omp end declare target
