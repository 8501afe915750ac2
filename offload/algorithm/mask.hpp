// Which keys a query sees. Causal masks, windows and sequence ends are all intervals of keys per query row, so
// they compose by intersection into one Band; key padding is the one mask that is not an interval.
#pragma once

#include "algorithm/params.hpp"

#pragma omp declare target

namespace flashomp::offload {

/// Half-open range of rows or blocks.
struct Range {
    int begin = 0, end = 0;
};

FLASHOMP_INLINE int clamp(int value, int lowest, int highest)
{
    return value < lowest ? lowest : (value > highest ? highest : value);
}

/// Row i of the queries keeps key j when low <= j - i <= high, 0 <= i < q_len and 0 <= j < k_len.
struct Band {
    int low = 0, high = 0; ///< within [-q_len, k_len]; lengths are at most 2^30, so j - i and i + high fit
    int q_len = 0, k_len = 0;

    FLASHOMP_INLINE bool keeps(int i, int j) const
    {
        // One comparison for both sides, of what is the same for a row but for a constant.
        const auto above_low = static_cast<unsigned>(j - i) - static_cast<unsigned>(low);
        const auto span = static_cast<unsigned>(high) - static_cast<unsigned>(low);
        return (above_low <= span) & (i < q_len) & (j < k_len);
    }

    /// The keys that at least one of the query rows [i0, i1) keeps.
    FLASHOMP_INLINE Range keys(int i0, int i1) const
    {
        return {clamp(i0 + low, 0, k_len), clamp(i1 - 1 + high + 1, 0, k_len)};
    }

    /// The queries that keep at least one of the keys [j0, j1).
    FLASHOMP_INLINE Range queries(int j0, int j1) const
    {
        return {clamp(j0 - high, 0, q_len), clamp(j1 - 1 - low + 1, 0, q_len)};
    }

    /// The keys that all of the query rows [i0, i1) keep; end <= begin where there are none.
    FLASHOMP_INLINE Range interior_keys(int i0, int i1) const
    {
        return {clamp(i1 - 1 + low, 0, k_len), clamp(i0 + high + 1, 0, k_len)};
    }

    /// The queries that keep all of the keys [j0, j1); end <= begin where there are none.
    FLASHOMP_INLINE Range interior_queries(int j0, int j1) const
    {
        return {clamp(j1 - 1 - high, 0, q_len), clamp(j0 - low + 1, 0, q_len)};
    }
};

/// Diagonals j - i that a mask keeps, before they are cut to the sequence.
struct Diagonals {
    std::int64_t low = -(std::int64_t{1} << 60), high = std::int64_t{1} << 60;

    FLASHOMP_INLINE Diagonals operator&(const Diagonals& other) const
    {
        return {low > other.low ? low : other.low, high < other.high ? high : other.high};
    }
};

struct CausalMask {
    Alignment alignment;
    FLASHOMP_INLINE Diagonals keeps(std::int64_t delta) const // delta = Nk - Nq
    {
        Diagonals kept;
        if (alignment != Alignment::none) {
            kept.high = alignment == Alignment::top_left ? 0 : delta;
        }
        return kept;
    }
};

struct WindowMask {
    std::int64_t left, right; ///< negative: unbounded
    FLASHOMP_INLINE Diagonals keeps(std::int64_t delta) const
    {
        constexpr std::int64_t everything = std::int64_t{1} << 32; // beyond any sequence; a larger side could overflow
        Diagonals kept;
        if (left >= 0 && left < everything) {
            kept.low = delta - left;
        }
        if (right >= 0 && right < everything) {
            kept.high = delta + right;
        }
        return kept;
    }
};

/// The band of one sequence: the intersection of its masks, cut to its ends.
FLASHOMP_INLINE Band band_of(const Params& p, const Sequence& s)
{
    const std::int64_t delta = static_cast<std::int64_t>(s.k_len) - s.q_len;
    const Diagonals kept = CausalMask{p.causal}.keeps(delta) & WindowMask{p.window_left, p.window_right}.keeps(delta);
    const auto cut = [&](std::int64_t d) {
        return static_cast<int>(d < -s.q_len ? -s.q_len : (d > s.k_len ? s.k_len : d));
    };
    // Without any diagonal there is no key either; high >= low otherwise.
    return {cut(kept.low), cut(kept.high), s.q_len, kept.low <= kept.high ? s.k_len : 0};
}

} // namespace flashomp::offload

#pragma omp end declare target
