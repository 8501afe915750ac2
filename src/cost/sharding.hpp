// How a sequence is cut into shards, and how many pairs of a query and a key two shards have in common.
#pragma once

#include "shape.hpp"

#include <array>
#include <cstdint>
#include <vector>

namespace flashomp::cost {

/// Which rows a rank holds. `contiguous` cuts the sequence into one chunk a rank. `zigzag` cuts it into 2·ranks chunks,
/// of which rank r has chunks r and 2·ranks - 1 - r: under a causal mask a chunk from the front, which sees few keys,
/// and one from the back, which sees many.
enum class Layout : std::uint8_t { contiguous, zigzag };

/// The rows of a rank, in up to two stretches; chunk c of C begins at row ⌊c·length/C⌋, so any length will do.
[[nodiscard]] std::array<Stretch, 2> shard(Layout layout, std::int64_t rank, std::int64_t ranks, std::int64_t length);

/// Pairs of a query and a key that the masks of a shape keep, for the queries of one rank and the keys of one rank.
/// Counts are exact, for one head and one entry of the batch, and take no time that grows with the length. Packed
/// sequences are cut as if they were one sequence; then the counts are of all of them, and there is one entry.
class ShardPairs {
public:
    /// Causal masks and windows count; block masks do not (schemes.hpp refuses them).
    ShardPairs(const Shape& shape, Layout layout, std::int64_t ranks);

    [[nodiscard]] std::int64_t ranks() const { return static_cast<std::int64_t>(queries_.size()); }
    [[nodiscard]] std::int64_t entries() const { return entries_; } ///< of the batch, all alike

    /// Of one entry.
    [[nodiscard]] std::int64_t rows_q(std::int64_t rank) const { return rows(queries_, rank); }
    [[nodiscard]] std::int64_t rows_k(std::int64_t rank) const { return rows(keys_, rank); }

    /// Of the queries of rank `rank` and the block of keys whose home is rank `block`.
    [[nodiscard]] std::int64_t pairs(std::int64_t rank, std::int64_t block) const;

    /// Of the queries of a rank and all keys.
    [[nodiscard]] std::int64_t pairs(std::int64_t rank) const;

private:
    using Shards = std::vector<std::array<Stretch, 2>>;

    struct Sequence {
        std::int64_t first_q = 0, first_k = 0; ///< row of the packed tensors
        offload::Band band;
    };

    [[nodiscard]] static std::int64_t rows(const Shards& shards, std::int64_t rank)
    {
        const std::array<Stretch, 2>& of_rank = shards[static_cast<std::size_t>(rank)];
        return of_rank[0].count + of_rank[1].count;
    }
    [[nodiscard]] std::int64_t pairs_of(const Stretch& queries, const Stretch& keys) const;

    std::vector<Sequence> sequences_; ///< in the order of their rows
    std::int64_t entries_ = 1, all_keys_ = 0;
    Shards queries_, keys_;
};

} // namespace flashomp::cost
