// What a call costs that ranks share, for one scheme: what `flashomp plan --ranks` shows.
#pragma once

#include "ring_schedule.hpp"
#include "schemes.hpp"
#include "shape.hpp"
#include "sharing.hpp"

#include <cstdint>
#include <optional>

namespace flashomp::cost {

struct SharedCall {
    Scheme scheme;
    Schedule schedule;
    RankMemory memory;
    double hop_bytes = 0; ///< the most that a rank sends at one hop of the ring or gather; Ulysses: in one all-to-all
    double alone = 0;     ///< seconds that one rank would take for all
    /// Rows of q in all from which the ring takes at most 1 % longer than with links that take no time, at the shape's
    /// other sizes and the same ratio of keys to queries. Of the ring alone, in a Ulysses × ring. Tried are rings of at
    /// most 64 places, whose hops are like those of larger ones. None where no length to 2^30 rows of these will do.
    std::optional<std::int64_t> hiding_rows;

    /// Of what a rank would take if all had the same work and nothing were sent.
    [[nodiscard]] double share_of_ideal() const;
    /// Computing of the busiest rank over the mean: 1 is even.
    [[nodiscard]] double imbalance() const;
};

/// `flops_a_pair`: that a pass carries out for a pair of a query and a key, for one head.
[[nodiscard]] SharedCall share(const Shape& shape, DType dtype, bool backward, double flops_a_pair,
                               const Scheme& scheme, const Cluster& cluster);

} // namespace flashomp::cost
