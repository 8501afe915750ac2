// The order in which blocks are handed out.
#pragma once

#include "algorithm/params.hpp"

#pragma omp declare target

namespace flashomp::offload {

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
