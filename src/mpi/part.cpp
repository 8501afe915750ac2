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

Options PartOptions::of(const Piece& piece, const HeadRange& queries)
{
    const HeadRange heads{first_head_ + queries.first, queries.count};
    Options part = whole_;
    part.sink = part.cu_seqlens_q = part.cu_seqlens_k = {};
    part.positions_q = positions_of(piece.q);
    part.positions_k = positions_of(piece.k);
    part.first_sequence += piece.q.sequence;
    part.first_head += heads.first;
    if (wants_parts_) { // one more query and one more key, which nobody has: for the others nothing changes
        ++part.positions_q.whole;
        ++part.positions_k.whole;
    }
    if (whole_.alibi_slopes) {
        const int axis = whole_.alibi_slopes.rank - 1;
        part.alibi_slopes = part_of(whole_.alibi_slopes, axis, heads.first, heads.count);
        if (is_packed_ && axis == 1) {
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
        part.block_mask = block_masks_.part(piece, heads);
    }
    return part;
}

} // namespace flashomp::mpi
