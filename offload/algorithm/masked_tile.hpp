// Whether a tile of scores is interior, padded or masked, and what a backward pass does in each of these cases.
#pragma once

#include "algorithm/score.hpp"

#pragma omp declare target

namespace flashomp::offload {

/// One tile of pairs of a query and a key: the rules for its scores, and its first query and key.
template <class AnyScore>
struct Pairs {
    const AnyScore& score;
    Range interior; ///< rows of what streams past whose pairs with all resident rows are visible
    int i0, j0;
    bool is_whole = true; ///< no mask hides any of them (PairMask)
};

template <class Machine>
using PairsOn = Pairs<ScoreOn<Machine>>;

/// Whether the `count` rows from `first` on are all in a range.
FLASHOMP_INLINE bool contains(Range range, int first, int count)
{
    return (first >= range.begin) & (first + count <= range.end);
}

/// Streams the blocks of a range, of `step` rows each, but for those that the masks hide.
template <class Machine, class LoadBlock, class Multiply, class Attend>
FLASHOMP_INLINE void for_kept_blocks(Machine& tile, const TileRow& tiles, Range range, int step, const LoadBlock& load,
                                     const Multiply& multiply, const Attend& attend)
{
    if constexpr (TakesMasks<Machine>) {
        for (int first = range.begin; first < range.end;) {
            int end = range.end;
            if (tiles.kinds != nullptr) {
                for (; first < range.end && tiles.is_hidden(first / step); first += step) {
                }
                for (end = first; end < range.end && !tiles.is_hidden(end / step); end += step) {
                }
                end = end < range.end ? end : range.end;
            }
            if (first < end) {
                tile.for_blocks(Range{first, end}, step, load, multiply, attend);
            }
            first = end;
        }
    } else {
        tile.for_blocks(range, step, load, multiply, attend);
    }
}

/// Calls f<masked>() for a tile s of dot products, once: masked says whether f must look at the mask for each element.
/// Padding is hidden beforehand where modified scores do not ask for it themselves: by rows, whose elements other
/// threads multiplied, hence sync(). f comes by reference, here and where closures are passed on in backward.hpp: nvcc
/// needs more registers for copies.
template <bool modified, bool keys_are_rows, class Machine, class F>
FLASHOMP_INLINE void with_mask(Machine& tile, typename Machine::Scores& s, const PairsOn<Machine>& pairs, const F& f)
{
    if (pairs.is_whole && contains(pairs.interior, keys_are_rows ? pairs.i0 : pairs.j0, tile.stream_rows())) {
        f.template operator()<false>();
    } else {
        if (!modified && pairs.score.key_padding != nullptr) {
            tile.sync();
            tile.map(s, PaddedKeys<keys_are_rows, ScoreOn<Machine>>{pairs.score, pairs.j0});
            tile.sync();
        }
        if constexpr (!modified && TakesMasks<Machine>) {
            if (!pairs.is_whole) {
                tile.sync();
                hide_masked<keys_are_rows>(tile, s, pairs.score, pairs.i0, pairs.j0);
                tile.sync();
            }
        }
        f.template operator()<true>();
    }
}

} // namespace flashomp::offload

#pragma omp end declare target
