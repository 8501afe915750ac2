// Bands of shards whose rows stand in two stretches of the whole sequence, as zigzag sharding has them.
//
// Positions grow with the rows, so what a row sees is still one interval of the rows that are here, and tiles are
// skipped and found to be interior as ever: a band asks for positions, and counts the rows that stand before a
// position.
#pragma once

#include "algorithm/mask.hpp"

#include <type_traits>

#pragma omp declare target

namespace flashomp::offload {

/// Machines whose passes take two stretches. The others run calls with one at most (registry.cpp), which needs no more
/// than the numbers of a Band, and their kernels have no code for a second one.
template <class Machine>
concept TakesSeams = requires
{
    Machine::takes_seams;
};

/// Rows in two stretches, by positions that count from the first of them.
struct Seam {
    int row = 0, gap = 0; ///< from this row on, positions are so much larger

    [[nodiscard]] FLASHOMP_INLINE int position(int r) const { return r + (r >= row ? gap : 0); }
    /// How many rows stand before a position. Beyond both ends it is as if the rows went on there.
    [[nodiscard]] FLASHOMP_INLINE int rows_before(int position) const
    {
        return position <= row ? position : (position - gap <= row ? row : position - gap);
    }
};

/// Row i of the queries keeps key j when low <= position of j - position of i <= high.
struct SeamedBand {
    Band band; ///< of positions; its lengths are those of the rows that are here
    Seam q, k;
    int q_len = 0, k_len = 0;

    [[nodiscard]] FLASHOMP_INLINE int query(int i) const { return q.position(i); }
    [[nodiscard]] FLASHOMP_INLINE int key(int j) const { return k.position(j); }

    [[nodiscard]] FLASHOMP_INLINE bool keeps(int i, int j) const
    {
        return band.has_diagonal(key(j) - query(i)) & (i < q_len) & (j < k_len);
    }
    [[nodiscard]] FLASHOMP_INLINE Range keys(int i0, int i1) const
    {
        return keys_between(query(i0) + band.low, query(i1 - 1) + band.high);
    }
    [[nodiscard]] FLASHOMP_INLINE Range queries(int j0, int j1) const
    {
        return queries_between(key(j0) - band.high, key(j1 - 1) - band.low);
    }
    [[nodiscard]] FLASHOMP_INLINE Range interior_keys(int i0, int i1) const
    {
        return keys_between(query(i1 - 1) + band.low, query(i0) + band.high);
    }
    [[nodiscard]] FLASHOMP_INLINE Range interior_queries(int j0, int j1) const
    {
        return queries_between(key(j1 - 1) - band.high, key(j0) - band.low);
    }

private:
    /// The rows that stand at positions [first, last].
    [[nodiscard]] FLASHOMP_INLINE Range keys_between(int first, int last) const
    {
        return {clamp(k.rows_before(first), 0, k_len), clamp(k.rows_before(last + 1), 0, k_len)};
    }
    [[nodiscard]] FLASHOMP_INLINE Range queries_between(int first, int last) const
    {
        return {clamp(q.rows_before(first), 0, q_len), clamp(q.rows_before(last + 1), 0, q_len)};
    }
};

FLASHOMP_INLINE SeamedBand seamed_band_of(const Params& p, const Sequence& s)
{
    const Seam q{p.place_q.seam, p.place_q.gap};
    const Seam k{p.place_k.seam, p.place_k.gap};
    const Band band = band_of(p, s, s.q_len + q.gap, s.k_len + k.gap);
    return {band, q, k, s.q_len, band.k_len};
}

template <class Machine>
using BandOn = std::conditional_t<TakesSeams<Machine>, SeamedBand, Band>;

template <class AnyBand>
FLASHOMP_INLINE AnyBand band_as(const Params& p, const Sequence& s)
{
    if constexpr (std::is_same_v<AnyBand, SeamedBand>) {
        return seamed_band_of(p, s);
    } else {
        return band_of(p, s);
    }
}

} // namespace flashomp::offload

#pragma omp end declare target
