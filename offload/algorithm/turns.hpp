// Whose turn it is to add to the dQ of a query block, where crews with different key blocks do so at the same time.
#pragma once

#include "algorithm/forward.hpp"

#pragma omp declare target

namespace flashomp::offload {

/// The number of a query block, of block_m queries, among those of all heads of all sequences.
FLASHOMP_INLINE std::int64_t query_block(const Params& p, int batch, int head, int i0, int block_m)
{
    const std::int64_t blocks = (p.seqlen_q + block_m - 1) / block_m;
    return (batch * std::int64_t{p.heads_q} + head) * blocks + i0 / block_m;
}

/// Key blocks, of block_n keys, that query rows [i0, i0 + block_m) see.
template <class AnyBand>
FLASHOMP_INLINE Range seen_key_blocks(const AnyBand& band, int i0, int block_m, int block_n)
{
    const int i1 = i0 + block_m < band.q_len ? i0 + block_m : band.q_len;
    const Range keys = i0 < i1 ? band.keys(i0, i1) : Range{0, 0};
    return keys.begin < keys.end ? Range{keys.begin / block_n, (keys.end + block_n - 1) / block_n} : Range{0, 0};
}

/// The query block, of `blocks`, with which a key block begins where each begins at another place.
FLASHOMP_INLINE int first_query_block(int key_block, int key_blocks, int blocks)
{
    return key_block * blocks / key_blocks;
}

/// The query blocks that see a key block: from that of the first query which does to that of the last one.
template <class AnyBand>
FLASHOMP_INLINE Range seeing_query_blocks(const AnyBand& band, int key_block, int block_m, int block_n)
{
    const int j0 = key_block * block_n;
    const int j1 = j0 + block_n < band.k_len ? j0 + block_n : band.k_len;
    const Range queries = j0 >= 0 && j0 < j1 ? band.queries(j0, j1) : Range{0, 0};
    return queries.begin < queries.end ? Range{queries.begin / block_m, (queries.end + block_m - 1) / block_m}
                                       : Range{0, 0};
}

/// What of a range lies before another one, or behind: bounds of key blocks that follow one another only grow.
FLASHOMP_INLINE Range before(const Range& range, const Range& other)
{
    return {range.begin, other.begin < other.end && other.begin < range.end ? other.begin : range.end};
}
FLASHOMP_INLINE Range behind(const Range& range, const Range& other)
{
    return {other.begin < other.end && other.end > range.begin ? other.end : range.begin, range.end};
}

/// The turns of an item's keys at the query blocks of one head, whose place in the call this is.
template <class AnyBand>
FLASHOMP_INLINE Turns turns_of(const Params& p, const WorkItem& work, const AnyBand& band, int head, int block_m,
                               int block_n)
{
    const int own = work.block;
    const int key_blocks = (band.k_len + block_n - 1) / block_n;
    Turns turns{query_block(p, work.batch, head, 0, block_m), {}, {}, 0, static_cast<unsigned>(own) + 1};
    if (work.order == KeyOrder::rotating) { // downwards, from the last that begins here or before
        const int blocks = (band.q_len + block_m - 1) / block_m;
        const int last = own > 0 ? own - 1 : key_blocks - 1;
        turns.first = {first_query_block(own, key_blocks, blocks), first_query_block(own + 1, key_blocks, blocks)};
        turns.last = {first_query_block(last, key_blocks, blocks), first_query_block(last + 1, key_blocks, blocks)};
        turns.before = static_cast<unsigned>(own + 1 < key_blocks ? own + 1 : 0) + 1;
        return turns;
    }
    const Range seeing = seeing_query_blocks(band, own, block_m, block_n);
    const Range below = seeing_query_blocks(band, own - 1, block_m, block_n);
    const Range above = seeing_query_blocks(band, own + 1, block_m, block_n);
    const bool goes_down = work.order == KeyOrder::descending;
    turns.first = goes_down ? before(seeing, above) : behind(seeing, below);
    turns.last = goes_down ? behind(seeing, below) : before(seeing, above);
    turns.before = goes_down ? turns.own + 1 : turns.own - 1;
    return turns;
}

} // namespace flashomp::offload

#pragma omp end declare target
