#include "block_masks.hpp"

#include <algorithm>
#include <iterator>
#include <span>

namespace flashomp::mpi {

namespace {

/// The numbers of a block mask that travel before it does.
enum Number : std::size_t { extent_b, extent_h, rows_of_block, keys_of_block, block_count, bit_bytes, number_count };

template <class Element>
std::span<const Element> elements(const Buffer& buffer)
{
    return {reinterpret_cast<const Element*>(buffer.data()),
            static_cast<std::size_t>(buffer.bytes()) / sizeof(Element)};
}

} // namespace

/// Some queries, keys and heads of the masks, as a predicate that knows of blocks.
struct BlockMasks::Part {
    const BlockMasks& all;
    std::int64_t sequence, head, query, key; ///< the first ones; queries count in the group

    [[nodiscard]] bool operator()(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) const
    {
        const Segment& segment = all.segment_of(query + i);
        return all.members_[segment.member].mask.keeps(sequence + b, head + h,
                                                       query + i - segment.at.first + segment.own, key + j);
    }

    /// What the blocks of the members that have these pairs have in common.
    [[nodiscard]] BlockKind block(std::int64_t b, std::int64_t h, std::int64_t i0, std::int64_t i1, std::int64_t j0,
                                  std::int64_t j1) const
    {
        bool all_whole = true, all_hidden = true;
        for (std::int64_t row = query + i0; row < query + i1;) {
            const Segment& segment = all.segment_of(row);
            const std::int64_t end = std::min(query + i1, segment.at.first + segment.at.count);
            const std::int64_t shift = segment.own - segment.at.first;
            look_at(all.members_[segment.member].mask, b, h, {row + shift, end - row}, {key + j0, j1 - j0}, all_whole,
                    all_hidden);
            row = end;
        }
        return all_hidden ? BlockKind::hidden : (all_whole ? BlockKind::whole : BlockKind::partial);
    }

private:
    void look_at(const BlockMask& mask, std::int64_t b, std::int64_t h, const Stretch& rows, const Stretch& keys,
                 bool& all_whole, bool& all_hidden) const
    {
        constexpr std::int32_t is_whole = -1, is_hidden = -2;
        const BlockMaskShape& s = mask.shape();
        const std::int64_t of = (s.batch == 1 ? 0 : sequence + b) * s.heads_q + (s.heads_q == 1 ? 0 : head + h);
        for (std::int64_t x = rows.first / s.block_q; x <= (rows.first + rows.count - 1) / s.block_q; ++x) {
            for (std::int64_t y = keys.first / s.block_k; y <= (keys.first + keys.count - 1) / s.block_k; ++y) {
                const std::int64_t at = (of * s.blocks_q() + x) * s.blocks_k() + y;
                const std::int32_t kind = mask.table()[static_cast<std::size_t>(at)];
                all_whole = all_whole && kind == is_whole;
                all_hidden = all_hidden && kind == is_hidden;
            }
        }
    }
};

std::vector<std::int64_t> facts_of_block_masks(const Messages& messages, const BlockMask& own)
{
    const BlockMaskShape& s = own.shape();
    std::vector<std::int64_t> facts(number_count);
    facts[extent_b] = s.batch;
    facts[extent_h] = s.heads_q;
    facts[rows_of_block] = s.block_q;
    facts[keys_of_block] = s.block_k;
    facts[block_count] = static_cast<std::int64_t>(own.by_query().blocks.size());
    facts[bit_bytes] = static_cast<std::int64_t>(own.bits().size());
    return messages.all_numbers(facts);
}

BlockMasks::BlockMasks(const Call& call, const Whole& whole, const Group& group, int first, int rank)
    : is_packed_(call.is_packed()), first_(first), me_(is_packed_ ? 0 : static_cast<std::size_t>(rank - first))
{
    if (!call.options.block_mask) {
        return;
    }
    if (is_packed_) { // all ranks have the mask of all rows
        members_.resize(1);
        members_[me_].mask = call.options.block_mask;
        segments_.push_back({{0, members_[me_].mask.shape().seqlen_q}, 0, me_});
        return;
    }
    members_.resize(static_cast<std::size_t>(group.members()));
    members_[me_].mask = call.options.block_mask;
    for (std::size_t m = 0; m < members_.size(); ++m) {
        for (const Group::Rows& rows : group.rows_of_member(static_cast<int>(m))) {
            if (rows.count > 0) {
                segments_.push_back({{rows.shared, rows.count}, rows.own, m});
            }
        }
        if (m == me_) {
            continue;
        }
        const auto sender = static_cast<std::size_t>(first) + m;
        const auto fact = [&](Number number) { return whole.block_masks[sender * number_count + number]; };
        Member& member = members_[m];
        member.shape = {fact(extent_b), fact(extent_h),      whole.rows_q[sender],
                        whole.length_k, fact(rows_of_block), fact(keys_of_block)};
        const std::int64_t rows = member.shape.batch * member.shape.heads_q * member.shape.blocks_q();
        Arrays& arrays = member.arriving;
        arrays.starts = Buffer(host_site(), (rows + 1) * std::int64_t{sizeof(std::int64_t)});
        arrays.blocks = Buffer(host_site(), fact(block_count) * std::int64_t{sizeof(std::int32_t)});
        arrays.numbers = Buffer(host_site(), fact(block_count) * std::int64_t{sizeof(std::int32_t)});
        arrays.bits = Buffer(host_site(), fact(bit_bytes));
        bytes_ += arrays.starts.bytes() + arrays.blocks.bytes() + arrays.numbers.bytes() + arrays.bits.bytes();
    }
    std::sort(segments_.begin(), segments_.end(),
              [](const Segment& a, const Segment& b) { return a.at.first < b.at.first; });
}

void BlockMasks::exchange(Messages& messages)
{
    Pending pending;
    const BlockMask& own = members_[me_].mask;
    const BlockRows& rows = own.by_query();
    for (std::size_t m = 0; m < members_.size(); ++m) {
        if (m == me_) {
            continue;
        }
        const int other = first_ + static_cast<int>(m);
        Arrays& arrays = members_[m].arriving;
        for (Buffer* const buffer : {&arrays.starts, &arrays.blocks, &arrays.numbers, &arrays.bits}) {
            messages.receive(buffer->all(), other, Tag::heads, pending);
        }
        for (const std::span<const std::byte> bytes :
             {std::as_bytes(std::span(rows.starts)), std::as_bytes(std::span(rows.blocks)),
              std::as_bytes(std::span(rows.bits)), std::as_bytes(own.bits())}) {
            messages.send(bytes, other, Tag::heads, pending);
        }
    }
    messages.wait(pending);
}

void BlockMasks::assemble()
{
    for (Member& member : members_) {
        if (member.mask) {
            continue; // this rank's
        }
        const Arrays& arrays = member.arriving;
        member.mask = BlockMask::from_blocks(
            member.shape, elements<std::int64_t>(arrays.starts), elements<std::int32_t>(arrays.blocks),
            elements<std::int32_t>(arrays.numbers), elements<std::uint8_t>(arrays.bits));
        member.arriving = {};
    }
}

const BlockMasks::Segment& BlockMasks::segment_of(std::int64_t row) const
{
    return *std::prev(std::upper_bound(segments_.begin(), segments_.end(), row,
                                       [](std::int64_t r, const Segment& segment) { return r < segment.at.first; }));
}

BlockMask BlockMasks::part(const Piece& piece, const HeadRange& heads) const
{
    BlockMaskShape shape = members_[me_].mask.shape();
    bool has_heads = false;
    for (const Member& member : members_) { // each may have one for all
        shape.batch = std::max(shape.batch, member.mask.shape().batch);
        has_heads = has_heads || member.mask.shape().heads_q != 1;
    }
    shape.batch = is_packed_ ? 1 : shape.batch;
    shape.heads_q = has_heads ? heads.count : 1;
    shape.seqlen_q = piece.q.at.count;
    shape.seqlen_k = piece.k.at.count;
    return BlockMask::from_predicate(shape, Part{*this, piece.q.sequence, heads.first,
                                                 is_packed_ ? piece.q.at.first : piece.q.row, piece.k.at.first});
}

} // namespace flashomp::mpi
