// Interior, padded or masked: what the backward passes choose for every tile of scores, once.
#pragma once

#include "algorithm/score.hpp"

#pragma omp declare target

namespace flashomp::offload {

/// One tile of pairs of a query and a key: the rules for its scores, and its first query and key.
struct Pairs {
    const Score& score;
    Range interior; ///< what streams past keeps all of the resident rows, and they it, within this range
    int i0, j0;
};

/// Whether the `count` rows from `first` on are all in a range.
FLASHOMP_INLINE bool contains(Range range, int first, int count)
{
    return (first >= range.begin) & (first + count <= range.end);
}

/// Calls f<masked>() for a tile s of dot products, once: masked says whether f must look at the mask for each element.
/// Padding is hidden beforehand where modified scores do not ask for it themselves: by rows, whose elements other
/// threads multiplied, hence sync(). f comes by reference, here and where closures are passed on in backward.hpp: nvcc
/// needs more registers for copies.
template <bool modified, bool keys_are_rows, class Machine, class F>
FLASHOMP_INLINE void with_mask(Machine& tile, typename Machine::Scores& s, const Pairs& pairs, const F& f)
{
    if (contains(pairs.interior, keys_are_rows ? pairs.i0 : pairs.j0, tile.stream_rows())) {
        f.template operator()<false>();
    } else {
        if (!modified && pairs.score.key_padding != nullptr) {
            tile.sync();
            tile.map(s, PaddedKeys<keys_are_rows>{pairs.score, pairs.j0});
            tile.sync();
        }
        f.template operator()<true>();
    }
}

} // namespace flashomp::offload

#pragma omp end declare target
