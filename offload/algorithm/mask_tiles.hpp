// The table of tiles: of each tile of a pass, whether its masks hide all of its pairs, keep all of them or tell them
// apart. It is made before the pass, at the pass's own block sizes, from one look at a dense mask and from the blocks
// of a block mask. Hidden tiles are then neither loaded nor computed, and whole ones need no look at their pairs.
#pragma once

#include "algorithm/pair_mask.hpp"

#pragma omp declare target

namespace flashomp::offload {

/// The tiles of one pass: a byte (TileKind) each, [1|batch, 1|head, resident block, streaming block].
struct TileTable {
    PairMask mask; ///< of all heads
    std::uint8_t* kinds = nullptr;
    int batches = 1, heads = 1; ///< 1 where all have the same mask
    int resident_blocks = 0, stream_blocks = 0;
    int resident_rows = 0, stream_rows = 0;
    int seqlen_q = 0, seqlen_k = 0;
    bool keys_stay = false;

    [[nodiscard]] FLASHOMP_INLINE std::int64_t rows() const { return std::int64_t{batches} * heads * resident_blocks; }
    [[nodiscard]] FLASHOMP_INLINE std::int64_t tiles() const { return rows() * stream_blocks; }
};

/// The table of a pass with blocks of these sizes; its kinds are to be where params.mask.tiles says.
FLASHOMP_INLINE TileTable tile_table(const Params& p, int resident_rows, int stream_rows, bool keys_stay)
{
    TileTable table;
    table.mask = p.mask;
    table.kinds = const_cast<std::uint8_t*>(p.mask.tiles);
    table.batches = p.mask.dense_batch != 0 || p.mask.blocks_batch != 0 ? p.batch : 1;
    table.heads = p.mask.dense_head != 0 || p.mask.blocks_head != 0 ? p.heads_q : 1;
    table.seqlen_q = p.seqlen_q;
    table.seqlen_k = p.seqlen_k;
    table.keys_stay = keys_stay;
    table.resident_rows = resident_rows;
    table.stream_rows = stream_rows;
    const int resident = keys_stay ? p.seqlen_k : p.seqlen_q;
    const int stream = keys_stay ? p.seqlen_q : p.seqlen_k;
    table.resident_blocks = (resident + resident_rows - 1) / resident_rows;
    table.stream_blocks = (stream + stream_rows - 1) / stream_rows;
    return table;
}

FLASHOMP_INLINE TileKind both(TileKind a, TileKind b)
{
    return a == TileKind::whole ? b : (b == TileKind::whole || a == TileKind::hidden ? a : b);
}

/// What a block mask has for queries [i0, i1) and keys [j0, j1). Pairs of partial blocks are not looked at.
FLASHOMP_INLINE TileKind kind_of_blocks(const PairMask& mask, int i0, int i1, int j0, int j1)
{
    bool any_hidden = false, any_kept = false;
    const int last_i = block_of(i1 - 1, mask.block_q, mask.shift_q);
    const int last_j = block_of(j1 - 1, mask.block_k, mask.shift_k);
    for (int block_i = block_of(i0, mask.block_q, mask.shift_q); block_i <= last_i; ++block_i) {
        for (int block_j = block_of(j0, mask.block_k, mask.shift_k); block_j <= last_j; ++block_j) {
            const std::int32_t block = mask.blocks[std::int64_t{block_i} * mask.blocks_k + block_j];
            any_hidden = any_hidden || block != whole_block;
            any_kept = any_kept || block != hidden_block;
        }
    }
    return !any_kept ? TileKind::hidden : (any_hidden ? TileKind::partial : TileKind::whole);
}

/// What a dense mask has for them.
FLASHOMP_INLINE TileKind kind_of_dense(const PairMask& mask, int i0, int i1, int j0, int j1)
{
    bool any_hidden = false, any_kept = false;
    const int rows = mask.dense_query == 0 ? 1 : i1 - i0; // a broadcast row is the same for all
    j1 = !mask.is_bits && mask.dense_key == 0 ? j0 + 1 : j1;
    for (int i = i0; i < i0 + rows; ++i) {
        if (!mask.is_bits && mask.dense_key == 1) {
            const std::uint8_t* const row = mask.dense + i * mask.dense_query;
            unsigned kept = 0;
            for (int j = j0; j < j1; ++j) {
                kept += row[j] != 0 ? 1U : 0U;
            }
            any_kept = any_kept || kept > 0;
            any_hidden = any_hidden || kept < static_cast<unsigned>(j1 - j0);
        } else {
            for (int j = j0; j < j1;) {
                if (mask.is_bits && (j & 7) == 0 && j + 8 <= j1) { // 8 keys at a time
                    const unsigned byte = mask.dense[i * mask.dense_query + (j >> 3)];
                    any_kept = any_kept || byte != 0;
                    any_hidden = any_hidden || byte != 0xFFU;
                    j += 8;
                } else {
                    const bool keeps = dense_keeps(mask, i, j);
                    any_kept = any_kept || keeps;
                    any_hidden = any_hidden || !keeps;
                    ++j;
                }
            }
        }
        if (any_hidden && any_kept) {
            return TileKind::partial;
        }
    }
    return !any_kept ? TileKind::hidden : TileKind::whole;
}

/// Writes the kind of one tile of row `row` of the table.
FLASHOMP_INLINE void write_tile(const TileTable& table, std::int64_t row, int stream_block)
{
    const auto resident_block = static_cast<int>(row % table.resident_blocks);
    const auto head = static_cast<int>(row / table.resident_blocks % table.heads);
    const auto batch = static_cast<int>(row / table.resident_blocks / table.heads);
    const PairMask mask = mask_of_head(table.mask, batch, head);
    const int resident = resident_block * table.resident_rows;
    const int stream = stream_block * table.stream_rows;
    const int i0 = table.keys_stay ? stream : resident;
    const int j0 = table.keys_stay ? resident : stream;
    const int rows = table.keys_stay ? table.stream_rows : table.resident_rows;
    const int keys = table.keys_stay ? table.resident_rows : table.stream_rows;
    const int i1 = table.seqlen_q - i0 < rows ? table.seqlen_q : i0 + rows;
    const int j1 = table.seqlen_k - j0 < keys ? table.seqlen_k : j0 + keys;
    TileKind kind = mask.blocks == nullptr ? TileKind::whole : kind_of_blocks(mask, i0, i1, j0, j1);
    if (mask.dense != nullptr && kind != TileKind::hidden) {
        kind = both(kind, kind_of_dense(mask, i0, i1, j0, j1));
    }
    table.kinds[row * table.stream_blocks + stream_block] = static_cast<std::uint8_t>(kind);
}

} // namespace flashomp::offload

#pragma omp end declare target
