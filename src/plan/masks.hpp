// The masks of a problem, for who asks which rows see which.
#pragma once

#include "algorithm/mask.hpp"
#include "option_list.hpp"
#include "positions.hpp"
#include "problem.hpp"

#include <cstdint>

namespace flashomp {

/// Tells kernels where rows of shards stand.
inline void set_positions(offload::Params& p, const Problem& problem)
{
    const auto place = [](const Positions& positions) -> offload::Placement {
        const PlacedRows rows = placed_rows(positions);
        return {static_cast<int>(rows.first), static_cast<int>(rows.seam), static_cast<int>(rows.gap)};
    };
    p.has_positions = has_positions(problem.options);
    p.keys_are_part = problem.keys_are_part();
    p.whole_q = static_cast<int>(problem.whole_q());
    p.whole_k = static_cast<int>(problem.whole_k());
    p.place_q = place(problem.options.positions_q);
    p.place_k = place(problem.options.positions_k);
}

/// The band of one of its sequences; of rows in two stretches, as if the second followed the first.
inline offload::Band band_of(const Problem& problem, int q_len, int k_len)
{
    offload::Params p;
    set_positions(p, problem);
    p.causal = static_cast<offload::Alignment>(problem.options.causal);
    p.window_left = problem.options.window.left;
    p.window_right = problem.options.window.right;
    return offload::band_of(p, {0, 0, q_len, k_len});
}

/// Pairs (i, j) of rows i < q_len and keys j < k_len that the band keeps.
inline std::int64_t visible_pairs(const offload::Band& band)
{
    // Pairs with j - i <= d are a sum over t = i + d + 1 of min(max(t, 0), k_len), the keys that row i sees.
    const auto up_to = [&band](std::int64_t t) { // of that sum, all terms from 1 to t
        const std::int64_t ramp = t < 0 ? 0 : (t < band.k_len ? t : band.k_len);
        const std::int64_t level = t > band.k_len ? t - band.k_len : 0;
        return ramp * (ramp + 1) / 2 + level * band.k_len;
    };
    const auto below = [&](std::int64_t diagonal) { return up_to(diagonal + band.q_len) - up_to(diagonal); };
    return below(band.high) - below(std::int64_t{band.low} - 1);
}

} // namespace flashomp
