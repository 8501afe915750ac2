// Block masks of known forms: a dense mask, documents, a prefix, chunks, a dilated window, and a window with global
// tokens. A form says what a block is without asking for its pairs, where it can.
#include "flashomp/block_mask.hpp"

#include "block_mask_bounds.hpp"

#include <algorithm>
#include <fmt/format.h>
#include <string>
#include <utility>
#include <vector>

namespace flashomp {

namespace {

using namespace block_mask;

/// A mask given as bytes or a tensor of any strides.
struct OfTensor {
    const ConstTensorView& mask;
    bool operator()(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) const
    {
        const auto& strides = mask.strides;
        const auto* const bytes = static_cast<const std::uint8_t*>(mask.data);
        // NOLINTNEXTLINE(clang-analyzer-core.NullDereference): null has no elements, so nobody asks
        return bytes[b * strides[0] + h * strides[1] + i * strides[2] + j * strides[3]] != 0;
    }
};

/// What holds for all pairs of a block of the mask that keeps low <= i - j <= high.
BlockKind kind_of_band(std::int64_t low, std::int64_t high, std::int64_t i0, std::int64_t i1, std::int64_t j0,
                       std::int64_t j1)
{
    const std::int64_t least = i0 - (j1 - 1);
    const std::int64_t most = i1 - 1 - j0;
    if (most < low || least > high) {
        return BlockKind::hidden;
    }
    return least >= low && most <= high ? BlockKind::whole : BlockKind::partial;
}

BlockKind intersection(BlockKind a, BlockKind b)
{
    return std::min(a, b);
}

constexpr std::int64_t unbounded = std::int64_t{1} << 40;

struct Documents {
    std::span<const std::int32_t> ids;
    std::int64_t seqlen;
    bool causal;
    static constexpr std::int64_t tokens = fewest_of_block; ///< of a piece
    std::vector<std::int32_t> least, largest;               ///< document of each piece

    Documents(std::span<const std::int32_t> ids_, std::int64_t batch, bool causal_)
        : ids(ids_), seqlen(batch > 0 ? static_cast<std::int64_t>(ids_.size()) / batch : 0), causal(causal_)
    {
        const std::int64_t pieces = (seqlen + tokens - 1) / tokens;
        for (std::int64_t b = 0; b < batch; ++b) {
            for (std::int64_t piece = 0; piece < pieces; ++piece) {
                const auto first = ids.begin() + (b * seqlen + piece * tokens);
                const auto [low, high] = std::minmax_element(first, first + std::min(tokens, seqlen - piece * tokens));
                least.push_back(*low);
                largest.push_back(*high);
            }
        }
    }

    [[nodiscard]] std::pair<std::int32_t, std::int32_t> range(std::int64_t b, std::int64_t first,
                                                              std::int64_t last) const
    {
        const std::int64_t pieces = (seqlen + tokens - 1) / tokens;
        std::pair<std::int32_t, std::int32_t> found{least[at(b * pieces + first / tokens)],
                                                    largest[at(b * pieces + first / tokens)]};
        for (std::int64_t piece = first / tokens; piece <= (last - 1) / tokens; ++piece) {
            found.first = std::min(found.first, least[at(b * pieces + piece)]);
            found.second = std::max(found.second, largest[at(b * pieces + piece)]);
        }
        return found;
    }

    bool operator()(std::int64_t b, std::int64_t /*h*/, std::int64_t i, std::int64_t j) const
    {
        const std::int32_t document = ids[at(b * seqlen + i)];
        return (!causal || j <= i) && document >= 0 && document == ids[at(b * seqlen + j)];
    }

    [[nodiscard]] BlockKind block(std::int64_t b, std::int64_t /*h*/, std::int64_t i0, std::int64_t i1, std::int64_t j0,
                                  std::int64_t j1) const
    {
        const auto [least_q, largest_q] = range(b, i0, i1);
        const auto [least_k, largest_k] = range(b, j0, j1);
        if (largest_q < 0 || largest_k < 0 || largest_q < least_k || largest_k < least_q) {
            return BlockKind::hidden;
        }
        const bool is_one = least_q == largest_q && least_k == largest_k && least_q == least_k;
        const BlockKind kind = is_one ? BlockKind::whole : BlockKind::partial;
        return causal ? intersection(kind, kind_of_band(0, unbounded, i0, i1, j0, j1)) : kind;
    }
};

struct PrefixLm {
    std::span<const std::int64_t> prefix;

    [[nodiscard]] std::int64_t of(std::int64_t b) const { return prefix[prefix.size() == 1 ? 0 : at(b)]; }
    bool operator()(std::int64_t b, std::int64_t /*h*/, std::int64_t i, std::int64_t j) const
    {
        return j <= i || j < of(b);
    }
    [[nodiscard]] BlockKind block(std::int64_t b, std::int64_t /*h*/, std::int64_t i0, std::int64_t i1, std::int64_t j0,
                                  std::int64_t j1) const
    {
        if (j1 <= of(b)) {
            return BlockKind::whole;
        }
        const BlockKind causal = kind_of_band(0, unbounded, i0, i1, j0, j1);
        return j0 < of(b) && causal != BlockKind::whole ? BlockKind::partial : causal;
    }
};

struct Chunked {
    std::int64_t chunk;

    bool operator()(std::int64_t /*b*/, std::int64_t /*h*/, std::int64_t i, std::int64_t j) const
    {
        return j <= i && i / chunk == j / chunk;
    }
    [[nodiscard]] BlockKind block(std::int64_t /*b*/, std::int64_t /*h*/, std::int64_t i0, std::int64_t i1,
                                  std::int64_t j0, std::int64_t j1) const
    {
        const std::int64_t first_q = i0 / chunk, last_q = (i1 - 1) / chunk;
        const std::int64_t first_k = j0 / chunk, last_k = (j1 - 1) / chunk;
        if (last_q < first_k || last_k < first_q) {
            return BlockKind::hidden;
        }
        const BlockKind kind = first_q == last_q && first_k == last_k ? BlockKind::whole : BlockKind::partial;
        return intersection(kind, kind_of_band(0, unbounded, i0, i1, j0, j1));
    }
};

struct Dilated {
    std::int64_t window, dilation;

    bool operator()(std::int64_t /*b*/, std::int64_t /*h*/, std::int64_t i, std::int64_t j) const
    {
        return i >= j && i - j < window && (i - j) % dilation == 0;
    }
    [[nodiscard]] BlockKind block(std::int64_t /*b*/, std::int64_t /*h*/, std::int64_t i0, std::int64_t i1,
                                  std::int64_t j0, std::int64_t j1) const
    {
        const BlockKind kind = kind_of_band(0, window - 1, i0, i1, j0, j1);
        return dilation > 1 ? intersection(kind, BlockKind::partial) : kind;
    }
};

struct SlidingWithGlobal {
    std::int64_t left, right, global;
    bool causal;

    bool operator()(std::int64_t /*b*/, std::int64_t /*h*/, std::int64_t i, std::int64_t j) const
    {
        const bool is_near = i - j <= left && j - i <= right;
        return (!causal || j <= i) && (is_near || i < global || j < global);
    }
    [[nodiscard]] BlockKind block(std::int64_t /*b*/, std::int64_t /*h*/, std::int64_t i0, std::int64_t i1,
                                  std::int64_t j0, std::int64_t j1) const
    {
        BlockKind kind = kind_of_band(-right, left, i0, i1, j0, j1);
        if (i1 <= global || j1 <= global) {
            kind = BlockKind::whole;
        } else if (i0 < global || j0 < global) {
            kind = std::max(kind, BlockKind::partial);
        }
        return causal ? intersection(kind, kind_of_band(0, unbounded, i0, i1, j0, j1)) : kind;
    }
};

void check_positive(const char* function, const char* name, std::int64_t given, std::int64_t least)
{
    if (given < least) {
        throw Error(fmt::format("block_mask: {} of {} was {}; it must be {} or more.", name, function, given, least));
    }
}

} // namespace

BlockMask BlockMask::from_mask(const ConstTensorView& mask, std::int64_t block_q, std::int64_t block_k)
{
    if (mask.rank != 4 || mask.dtype != DType::boolean || mask.memory != Memory::host ||
        (mask.data == nullptr && mask.elements() > 0)) {
        throw Error(fmt::format("block_mask: the dense mask is {} {}; it must be boolean [1|B, 1|Hq, Nq, Nk] in host "
                                "memory.",
                                name_of(mask.dtype), shape_string(mask)));
    }
    return from_predicate({mask.shape[0], mask.shape[1], mask.shape[2], mask.shape[3], block_q, block_k},
                          OfTensor{mask});
}

BlockMask BlockMask::from_documents(std::span<const std::int32_t> ids, std::int64_t batch, bool causal,
                                    std::int64_t block_q, std::int64_t block_k)
{
    check_positive("from_documents", "batch", batch, 1);
    if (static_cast<std::int64_t>(ids.size()) % batch != 0) {
        throw Error(fmt::format("block_mask: ids has {} documents of tokens; it must have as many for each of {} "
                                "sequences.",
                                ids.size(), batch));
    }
    const Documents documents(ids, batch, causal);
    return from_predicate({batch, 1, documents.seqlen, documents.seqlen, block_q, block_k}, documents);
}

BlockMask BlockMask::from_lengths(std::span<const std::int64_t> lengths, bool causal, std::int64_t block_q,
                                  std::int64_t block_k)
{
    std::vector<std::int32_t> ids;
    std::int64_t total = 0;
    for (const std::int64_t& length : lengths) {
        check_positive("from_lengths", "a length", length, 0);
        total += length;
        if (length > most_rows || total > most_rows) {
            throw Error(
                fmt::format("block_mask: lengths sum to {} or more; at most {} are allowed.", total, most_rows));
        }
        ids.insert(ids.end(), at(length), static_cast<std::int32_t>(&length - lengths.data()));
    }
    return from_documents(ids, 1, causal, block_q, block_k);
}

BlockMask BlockMask::prefix_lm(std::span<const std::int64_t> prefix, std::int64_t seqlen, std::int64_t block_q,
                               std::int64_t block_k)
{
    check_positive("prefix_lm", "the number of prefixes", static_cast<std::int64_t>(prefix.size()), 1);
    for (const std::int64_t length : prefix) {
        check_positive("prefix_lm", "prefix", length, 0);
    }
    return from_predicate({static_cast<std::int64_t>(prefix.size()), 1, seqlen, seqlen, block_q, block_k},
                          PrefixLm{prefix});
}

BlockMask BlockMask::chunked(std::int64_t seqlen, std::int64_t chunk, std::int64_t block_q, std::int64_t block_k)
{
    check_positive("chunked", "chunk", chunk, 1);
    return from_predicate({1, 1, seqlen, seqlen, block_q, block_k}, Chunked{chunk});
}

BlockMask BlockMask::dilated(std::int64_t seqlen, std::int64_t window, std::int64_t dilation, std::int64_t block_q,
                             std::int64_t block_k)
{
    check_positive("dilated", "window", window, 1);
    check_positive("dilated", "dilation", dilation, 1);
    return from_predicate({1, 1, seqlen, seqlen, block_q, block_k}, Dilated{window, dilation});
}

BlockMask BlockMask::sliding_with_global(std::int64_t seqlen, std::int64_t left, std::int64_t right,
                                         std::int64_t global, bool causal, std::int64_t block_q, std::int64_t block_k)
{
    check_positive("sliding_with_global", "left", left, -1);
    check_positive("sliding_with_global", "right", right, -1);
    check_positive("sliding_with_global", "global", global, 0);
    const auto side = [](std::int64_t given) { return given < 0 ? unbounded : std::min(given, unbounded); };
    return from_predicate({1, 1, seqlen, seqlen, block_q, block_k},
                          SlidingWithGlobal{side(left), side(right), global, causal});
}

} // namespace flashomp
