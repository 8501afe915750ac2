#include "part.hpp"

namespace flashomp::mpi {

namespace {

Positions positions_of(const Run& run)
{
    Positions positions;
    positions.whole = run.whole;
    positions.stretches[0] = run.at;
    return positions;
}

/// Some queries and keys of a block mask, as a predicate that knows of its blocks.
struct MaskPart {
    const BlockMask& whole;
    std::int64_t sequence, query, key; ///< the first ones

    [[nodiscard]] bool operator()(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) const
    {
        return whole.keeps(sequence + b, h, query + i, key + j);
    }

    /// What the blocks of the whole that have these pairs have in common.
    [[nodiscard]] BlockKind block(std::int64_t b, std::int64_t h, std::int64_t i0, std::int64_t i1, std::int64_t j0,
                                  std::int64_t j1) const
    {
        const BlockMaskShape& s = whole.shape();
        constexpr std::int32_t is_whole = -1, is_hidden = -2;
        bool all_whole = true, all_hidden = true;
        for (std::int64_t x = (query + i0) / s.block_q; x <= (query + i1 - 1) / s.block_q; ++x) {
            for (std::int64_t y = (key + j0) / s.block_k; y <= (key + j1 - 1) / s.block_k; ++y) {
                const std::int64_t at = (((sequence + b) * s.heads_q + h) * s.blocks_q() + x) * s.blocks_k() + y;
                const std::int32_t kind = whole.table()[static_cast<std::size_t>(at)];
                all_whole = all_whole && kind == is_whole;
                all_hidden = all_hidden && kind == is_hidden;
            }
        }
        return all_hidden ? BlockKind::hidden : (all_whole ? BlockKind::whole : BlockKind::partial);
    }
};

} // namespace

ConstTensorView PartOptions::mask_of(const Piece& piece, const HeadRange& queries)
{
    if (mask_.dtype != DType::bits) {
        return pairs(mask_, piece, queries);
    }
    const ConstTensorView bits = rows(mask_, piece, queries);
    const std::int64_t keys = piece.k.at.count;
    const std::int64_t bytes = Buffer::bytes_of(DType::boolean, {bits.shape[0], bits.shape[1], bits.shape[2], keys});
    if (unpacked_.empty() || unpacked_.back().bytes() < bytes) {
        unpacked_.emplace_back(site_, bytes);
    }
    const TensorView booleans =
        unpacked_.back().view(DType::boolean, {bits.shape[0], bits.shape[1], bits.shape[2], keys});
    site_.unpack_bits(bits, piece.k.at.first, booleans);
    return booleans;
}

BlockMask PartOptions::block_mask_of(const Piece& piece) const
{
    BlockMaskShape shape = whole_.block_mask.shape();
    const bool has_sequences = is_packed_ && shape.batch > 1;
    shape.batch = is_packed_ ? 1 : shape.batch;
    shape.seqlen_q = piece.q.at.count;
    shape.seqlen_k = piece.k.at.count;
    return BlockMask::from_predicate(shape, MaskPart{whole_.block_mask, has_sequences ? piece.q.sequence : 0,
                                                     is_packed_ ? piece.q.at.first : piece.q.row, piece.k.at.first});
}

Options PartOptions::of(const Piece& piece, const HeadRange& queries)
{
    Options part = whole_;
    part.sink = part.cu_seqlens_q = part.cu_seqlens_k = {};
    part.positions_q = positions_of(piece.q);
    part.positions_k = positions_of(piece.k);
    if (whole_.alibi_slopes) {
        const int heads = whole_.alibi_slopes.rank - 1;
        part.alibi_slopes = part_of(whole_.alibi_slopes, heads, first_head_ + queries.first, queries.count);
        if (is_packed_ && heads == 1) {
            part.alibi_slopes = part_of(part.alibi_slopes, 0, piece.q.sequence, 1);
        }
    }
    if (whole_.bias) {
        part.bias = pairs(bias_, piece, queries);
    }
    if (whole_.mask) {
        part.mask = mask_of(piece, queries);
    }
    if (whole_.key_padding_mask) {
        const ConstTensorView all = whole_.key_padding_mask;
        part.key_padding_mask =
            part_of(is_packed_ ? part_of(all, 0, piece.q.sequence, 1) : all, 1, piece.k.at.first, piece.k.at.count);
    }
    if (whole_.block_mask) {
        part.block_mask = block_mask_of(piece);
    }
    return part;
}

} // namespace flashomp::mpi
