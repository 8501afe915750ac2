// The order in which blocks are handed out.
#pragma once

#include "algorithm/mask.hpp"

#pragma omp declare target

namespace flashomp::offload {

/// In which order the key blocks of a head add to the dQ of a query block, where one pass computes all gradients:
/// upwards, downwards, or, where all begin at the same time and at different query blocks, in the order in which they
/// get there.
enum class KeyOrder { ascending, descending, rotating };

/// When a key block adds to the dQ of the query blocks of a head, which it does between two others: each leaves its
/// number behind, and the last one leaves 0.
struct Turns {
    std::int64_t block;   ///< the head's first query block, among those of all heads of all sequences
    Range first, last;    ///< query blocks of the head at which this key block is the first one, or the last one
    unsigned before, own; ///< numbers: of key blocks, plus one
};

/// A block, and its head among those of all batches.
struct BlockOfHead {
    int block, head;
};

/// The blocks of one head follow one another, so that crews at work at the same time share its keys and values, or its
/// queries, in a cache. Of heads_together heads, as many as a cache holds, come the first blocks, then the second, and
/// so on, so that the crews' last items are alike.
FLASHOMP_INLINE BlockOfHead block_of_head(int index, int blocks, int all_heads, int heads_together)
{
    const int first = index / (blocks * heads_together) * heads_together;
    const int within = index - first * blocks;
    const int left = all_heads - first;
    const int together = left < heads_together ? left : heads_together;
    const int block = within / together;
    return {block, first + within - block * together};
}

} // namespace flashomp::offload

#pragma omp end declare target
