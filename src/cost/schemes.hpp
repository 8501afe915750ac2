// The ways to share a call out over ranks.
#pragma once

#include "shape.hpp"
#include "sharding.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace flashomp::cost {

/// Most ranks of a plan: each is played out with each block of keys.
inline constexpr std::int64_t most_ranks = 4096;

/// How queries meet the keys of other ranks. All but the gather are one engine: groups of `heads_ranks` ranks exchange
/// rows for heads, so that each has some heads of all rows of its group, and ranks with the same heads are a ring. Ring
/// has groups of one, Ulysses has one group of all.
enum class Exchanging : std::uint8_t { ring, gather };

struct Scheme {
    Exchanging exchanging = Exchanging::ring;
    Layout layout = Layout::contiguous;
    std::int64_t ranks = 1, heads_ranks = 1;

    [[nodiscard]] bool is_ulysses() const { return ranks > 1 && heads_ranks == ranks; }
    /// Places of a ring: shards of the sequence that keys travel between.
    [[nodiscard]] std::int64_t places() const { return ranks / heads_ranks; }
    /// "ring, zigzag", "all-gather, contiguous", "Ulysses", "Ulysses 8 x ring 4, zigzag".
    [[nodiscard]] std::string name() const;
};

/// Ring and all-gather in both layouts, Ulysses and, where a number between 1 and that of ranks divides it, Ulysses ×
/// ring in both. A group of the last has as many ranks as divide the key heads, at most, else as few as there can be:
/// ranks beyond the key heads have the same ones. It has no more ranks than there are heads. One rank has one scheme.
[[nodiscard]] std::vector<Scheme> schemes(const Shape& shape, std::int64_t ranks);

/// Throws Error unless the shape is of tensors, with masks that are causal or windows at most: block masks, latent
/// values and caches are not shared out. Also when there are not 1 to most_ranks ranks.
void require_shareable(const Shape& shape, std::int64_t ranks);

/// Heads of one rank of a group, and the key heads that these use.
struct Heads {
    double queries = 0, keys = 0;
};

/// Of rank `member` of a group of `members`. Query heads are shared out evenly. A key head goes to every rank that has
/// one of its query heads.
[[nodiscard]] Heads heads_of(const Shape& shape, std::int64_t member, std::int64_t members);

} // namespace flashomp::cost
