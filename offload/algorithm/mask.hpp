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

    FLASHOMP_INLINE bool has_diagonal(int diagonal) const
    {
        // One comparison for both sides, of what is the same for a row but for a constant.
        const auto above_low = static_cast<unsigned>(diagonal) - static_cast<unsigned>(low);
        const auto span = static_cast<unsigned>(high) - static_cast<unsigned>(low);
        return above_low <= span;
    }

    FLASHOMP_INLINE bool keeps(int i, int j) const { return has_diagonal(j - i) & (i < q_len) & (j < k_len); }

    // Positions, from that of the first row on (seams.hpp has others).
    FLASHOMP_INLINE int query(int i) const { return i; }
    FLASHOMP_INLINE int key(int j) const { return j; }

    /// The keys that at least one of the query rows [i0, i1) keeps.
    FLASHOMP_INLINE Range keys(int i0, int i1) const
    {
        return {clamp(i0 + low, 0, k_len), clamp(i1 - 1 + high + 1, 0, k_len)};
    }

    /// Keys that a row keeps at most; less than one where the mask hides all. Of the host alone, as it counts in 64
    /// bits.
    std::int64_t most_keys() const
    {
        const std::int64_t within = std::int64_t{high} - low + 1, of_last_row = std::int64_t{q_len} + high;
        const std::int64_t most = within < of_last_row ? within : of_last_row;
        return most < k_len ? most : k_len;
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

/// Nk - Nq of the whole sequence.
FLASHOMP_INLINE int whole_delta(const Params& p, const Sequence& s)
{
    return p.has_positions ? p.whole_k - p.whole_q : s.k_len - s.q_len;
}

/// How much further from the start of the whole sequence the first query stands than the first key.
FLASHOMP_INLINE int shift_of(const Params& p)
{
    return p.place_q.first - p.place_k.first;
}

/// The intersection of the masks of one sequence, cut to rows that stand on so many positions: diagonals of what is
/// here, from those of the whole sequence.
FLASHOMP_INLINE Band band_of(const Params& p, const Sequence& s, int positions_q, int positions_k)
{
    const std::int64_t delta = whole_delta(p, s);
    const Diagonals kept = CausalMask{p.causal}.keeps(delta) & WindowMask{p.window_left, p.window_right}.keeps(delta);
    const std::int64_t shift = shift_of(p);
    const auto cut = [&](std::int64_t diagonal) {
        const std::int64_t d = diagonal + shift;
        return static_cast<int>(d < -positions_q ? -positions_q : (d > positions_k ? positions_k : d));
    };
    // Without any diagonal there is no key either; high >= low otherwise.
    return {cut(kept.low), cut(kept.high), s.q_len, kept.low <= kept.high ? s.k_len : 0};
}

/// The band of one sequence: the intersection of its masks, cut to its ends.
FLASHOMP_INLINE Band band_of(const Params& p, const Sequence& s)
{
    return band_of(p, s, s.q_len, s.k_len);
}

} // namespace flashomp::offload

#pragma omp end declare target
