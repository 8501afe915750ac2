// Block-sparse masks: which pairs of a query and a key a call keeps, in blocks that are whole, partial or hidden.
// Hidden blocks are neither loaded nor computed, forward and backward.
#pragma once

#include "flashomp/tensor.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <type_traits>
#include <vector>

namespace flashomp {

/// What a mask does to a block of pairs: hides all, tells them apart, or keeps all.
enum class BlockKind : std::uint8_t { hidden, partial, whole };

/// The pairs that a block mask is of, and its blocks. The last block of an axis may reach beyond the axis' end.
struct BlockMaskShape {
    std::int64_t batch = 1;   ///< 1: all sequences have the same mask
    std::int64_t heads_q = 1; ///< 1: all query heads have the same mask
    std::int64_t seqlen_q = 0, seqlen_k = 0;
    std::int64_t block_q = 128, block_k = 128; ///< from 16 to 65536 each, of any size

    [[nodiscard]] std::int64_t blocks_q() const { return (seqlen_q + block_q - 1) / block_q; }
    [[nodiscard]] std::int64_t blocks_k() const { return (seqlen_k + block_k - 1) / block_k; }
    friend bool operator==(const BlockMaskShape&, const BlockMaskShape&) = default;
};

/// The blocks of a mask that are not hidden, in compressed rows (CSR). Row (b, h, x) has entries [starts[r], starts[r +
/// 1]) with r = (b·heads_q + h)·rows + x, in ascending order.
struct BlockRows {
    std::vector<std::int64_t> starts; ///< [batch·heads_q·rows + 1]
    std::vector<std::int32_t> blocks; ///< the block's number on the other axis
    std::vector<std::int32_t> bits;   ///< of a partial block its number in BlockMask::bits(); -1: whole
};

/// A predicate that knows of blocks: block(b, h, i0, i1, j0, j1) says what holds for all queries [i0, i1) and keys
/// [j0, j1). A block of which it says `partial` is asked pair by pair, and may turn out to be another kind.
template <class Predicate>
concept KnowsBlocks = requires(const Predicate& keeps, std::int64_t n)
{
    BlockKind(keeps.block(n, n, n, n, n, n));
};

/// An immutable mask. Copies share their storage, which takes 4 bytes for every pair of blocks, and of partial blocks a
/// bit for every pair. All functions that make one throw Error, in one sentence, for what they do not take.
class BlockMask {
public:
    BlockMask() = default; ///< no mask

    /// From compressed rows of blocks of queries (BlockRows): in starts [batch·heads_q·blocks_q + 1], the numbers of
    /// blocks of keys, ascending in each row, and of each -1 (whole) or the number of its bits. `bits` are those of
    /// partial blocks, [number, block_q, ceil(block_k / 8)]: key c of a block is bit c mod 8, counted from the lowest,
    /// of byte c / 8 (numpy.packbits(..., axis=-1, bitorder="little")).
    [[nodiscard]] static BlockMask from_blocks(const BlockMaskShape& shape, std::span<const std::int64_t> starts,
                                               std::span<const std::int32_t> blocks,
                                               std::span<const std::int32_t> bits_of_block,
                                               std::span<const std::uint8_t> bits);

    /// From a boolean host tensor [1|B, 1|Hq, Nq, Nk] of any strides: true keeps. Every pair is looked at once.
    [[nodiscard]] static BlockMask from_mask(const ConstTensorView& mask, std::int64_t block_q = 128,
                                             std::int64_t block_k = 128);

    /// From a predicate keeps(b, h, i, j) of 64-bit numbers: whether query i of head h of sequence b sees key j. All
    /// pairs are asked, but for blocks that the predicate knows of (KnowsBlocks).
    template <class Predicate>
    [[nodiscard]] static BlockMask from_predicate(const BlockMaskShape& shape, const Predicate& keeps);

    /// Documents in one sequence: query i sees key j where their documents are the same; with `causal` only j <= i. ids
    /// are [batch, seqlen], and a negative one belongs to no document: nobody sees it, and it sees nobody.
    [[nodiscard]] static BlockMask from_documents(std::span<const std::int32_t> ids, std::int64_t batch,
                                                  bool causal = true, std::int64_t block_q = 128,
                                                  std::int64_t block_k = 128);
    /// The same of one sequence that is documents of these lengths, one after the other.
    [[nodiscard]] static BlockMask from_lengths(std::span<const std::int64_t> lengths, bool causal = true,
                                                std::int64_t block_q = 128, std::int64_t block_k = 128);

    /// Causal (j <= i), but that all queries see the first prefix[b] keys. One prefix, or one for each sequence.
    [[nodiscard]] static BlockMask prefix_lm(std::span<const std::int64_t> prefix, std::int64_t seqlen,
                                             std::int64_t block_q = 128, std::int64_t block_k = 128);

    /// Causal within chunks of `chunk` tokens, as of Llama 4's local layers: j <= i and j / chunk == i / chunk.
    [[nodiscard]] static BlockMask chunked(std::int64_t seqlen, std::int64_t chunk, std::int64_t block_q = 128,
                                           std::int64_t block_k = 128);

    /// Causal, every `dilation`-th key of the last `window`: 0 <= i - j < window and (i - j) mod dilation == 0.
    [[nodiscard]] static BlockMask dilated(std::int64_t seqlen, std::int64_t window, std::int64_t dilation,
                                           std::int64_t block_q = 128, std::int64_t block_k = 128);

    /// A window i - left <= j <= i + right (-1 is unbounded), but that the first `global` tokens see all and are seen
    /// by all, where `causal` allows it (j <= i), as of Longformer and of attention sinks.
    [[nodiscard]] static BlockMask sliding_with_global(std::int64_t seqlen, std::int64_t left, std::int64_t right,
                                                       std::int64_t global, bool causal = true,
                                                       std::int64_t block_q = 128, std::int64_t block_k = 128);

    /// Whether there is a mask.
    [[nodiscard]] explicit operator bool() const { return storage_ != nullptr; }
    /// Whether both have the same storage.
    friend bool operator==(const BlockMask&, const BlockMask&) = default;

    // Of a mask that is there.
    [[nodiscard]] const BlockMaskShape& shape() const;
    [[nodiscard]] const BlockRows& by_query() const; ///< rows are blocks of queries, entries blocks of keys
    [[nodiscard]] const BlockRows& by_key() const;   ///< rows are blocks of keys, entries blocks of queries
    /// Of partial blocks, [number, block_q, ceil(block_k / 8)].
    [[nodiscard]] std::span<const std::uint8_t> bits() const;
    /// Of each block its number in bits(), -1 (whole) or -2 (hidden): [batch, heads_q, blocks_q, blocks_k].
    [[nodiscard]] std::span<const std::int32_t> table() const;
    /// Whether query i of head h of sequence b sees key j; b and h count where the mask has them.
    [[nodiscard]] bool keeps(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) const;
    /// Pairs that it keeps, of all its heads and sequences.
    [[nodiscard]] std::int64_t kept_pairs() const;

private:
    struct Storage;

    /// Blocks that arrive row by row.
    class Builder {
    public:
        explicit Builder(const BlockMaskShape& shape);
        Builder(const Builder&) = delete;
        Builder& operator=(const Builder&) = delete;
        ~Builder();

        void add_whole(std::int64_t block_k);
        /// A partial block: its bits, all 0, to be set before the next call.
        std::span<std::uint8_t> add_partial(std::int64_t block_k);
        /// Makes the partial block that came last what its bits say, where it is another kind.
        void settle();
        void end_row();
        [[nodiscard]] BlockMask finish();

    private:
        std::unique_ptr<Storage> storage_;
    };

    explicit BlockMask(std::shared_ptr<const Storage> storage);

    std::shared_ptr<const Storage> storage_;
};

template <class Predicate>
BlockMask BlockMask::from_predicate(const BlockMaskShape& shape, const Predicate& keeps)
{
    Builder builder(shape); // throws where the shape is none
    const std::int64_t bytes = (shape.block_k + 7) / 8;
    const auto end = [](std::int64_t first, std::int64_t size, std::int64_t length) {
        return length - first < size ? length : first + size;
    };
    for (std::int64_t row = 0; row < shape.batch * shape.heads_q * shape.blocks_q(); ++row) {
        const std::int64_t b = row / shape.blocks_q() / shape.heads_q;
        const std::int64_t h = row / shape.blocks_q() % shape.heads_q;
        const std::int64_t i0 = row % shape.blocks_q() * shape.block_q;
        const std::int64_t i1 = end(i0, shape.block_q, shape.seqlen_q);
        for (std::int64_t x = 0; x < shape.blocks_k(); ++x) {
            const std::int64_t j0 = x * shape.block_k;
            const std::int64_t j1 = end(j0, shape.block_k, shape.seqlen_k);
            BlockKind kind = BlockKind::partial;
            if constexpr (KnowsBlocks<Predicate>) {
                kind = keeps.block(b, h, i0, i1, j0, j1);
            }
            if (kind == BlockKind::whole) {
                builder.add_whole(x);
            } else if (kind == BlockKind::partial) {
                const std::span<std::uint8_t> bits = builder.add_partial(x);
                for (std::int64_t i = i0; i < i1; ++i) {
                    std::uint8_t* const line = bits.data() + (i - i0) * bytes;
                    for (std::int64_t j = j0; j < j1; ++j) {
                        const unsigned bit = keeps(b, h, i, j) ? 1U : 0U;
                        const auto c = static_cast<unsigned>(j - j0);
                        line[c / 8] = static_cast<std::uint8_t>(line[c / 8] | (bit << (c % 8)));
                    }
                }
                builder.settle();
            }
        }
        builder.end_row();
    }
    return builder.finish();
}

} // namespace flashomp
