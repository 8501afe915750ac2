// The options of a call on one piece: what the whole's say of its sequence, rows, keys and heads.
#pragma once

#include "block_masks.hpp"
#include "buffer.hpp"
#include "call.hpp"
#include "heads.hpp"
#include "layout.hpp"
#include "tensors.hpp"

#include <vector>

namespace flashomp::mpi {

/// Makes them. The sink is left out: one call of each row gets it.
class PartOptions {
public:
    /// `bias` and `mask` have the rank's query heads, `first_head` of the whole being their first one.
    PartOptions(const Call& call, const ConstTensorView& bias, const ConstTensorView& mask,
                const BlockMasks& block_masks, std::int64_t first_head, Site& site)
        : whole_(call.options), bias_(bias), mask_(mask), block_masks_(block_masks), is_packed_(call.is_packed()),
          wants_parts_(call.wants_parts), first_head_(first_head), site_(site)
    {
    }

    /// They view memory of this object until the next call.
    [[nodiscard]] Options of(const Piece& piece, const HeadRange& queries);

    /// What the piece has of a tensor like bias: [1|B, 1|heads, 1|rows, 1|keys].
    template <class Pointer>
    [[nodiscard]] BasicTensorView<Pointer> pairs(const BasicTensorView<Pointer>& tensor, const Piece& piece,
                                                 const HeadRange& queries) const
    {
        return part_unless_one(rows(tensor, piece, queries), 3, piece.k.at.first, piece.k.at.count);
    }

    /// The sinks of the heads of a call.
    [[nodiscard]] ConstTensorView sink(const HeadRange& queries) const
    {
        return part_of(whole_.sink, 0, first_head_ + queries.first, queries.count);
    }

private:
    template <class Pointer>
    [[nodiscard]] BasicTensorView<Pointer> rows(const BasicTensorView<Pointer>& tensor, const Piece& piece,
                                                const HeadRange& queries) const
    {
        BasicTensorView<Pointer> part = is_packed_ ? part_unless_one(tensor, 0, piece.q.sequence, 1) : tensor;
        part = part_unless_one(part, 1, queries.first, queries.count);
        return part_unless_one(part, 2, is_packed_ ? piece.q.at.first : piece.q.row, piece.q.at.count);
    }
    [[nodiscard]] ConstTensorView mask_of(const Piece& piece, const HeadRange& queries);

    const Options& whole_;
    ConstTensorView bias_, mask_;
    const BlockMasks& block_masks_;
    bool is_packed_, wants_parts_;
    std::int64_t first_head_;
    Site& site_;
    /// Of a mask of bits, as keys need not begin with a byte. Calls may still read old ones.
    std::vector<Buffer> unpacked_;
};

} // namespace flashomp::mpi
