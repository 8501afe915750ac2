#include "sharding.hpp"

#include "even_part.hpp"
#include "masks.hpp"

#include <algorithm>

namespace flashomp::cost {

namespace {

struct Interval {
    std::int64_t begin = 0, end = 0;
};

/// The rows of a stretch that belong to a sequence, counted from the sequence's first.
Interval within(const Stretch& stretch, std::int64_t first, std::int64_t length)
{
    return {std::max<std::int64_t>(stretch.first - first, 0), std::min(stretch.first + stretch.count - first, length)};
}

std::int64_t pairs_in(const offload::Band& whole, const Interval& queries, const Interval& keys)
{
    if (queries.begin >= queries.end || keys.begin >= keys.end) {
        return 0;
    }
    const std::int64_t rows = queries.end - queries.begin;
    const std::int64_t columns = keys.end - keys.begin;
    // Diagonals count from the first row and key of the part. Those beyond its corners keep everything or nothing.
    const auto moved = [&](int diagonal) {
        return static_cast<int>(std::clamp(diagonal + queries.begin - keys.begin, -rows, columns));
    };
    return visible_pairs({moved(whole.low), moved(whole.high), static_cast<int>(rows), static_cast<int>(columns)});
}

} // namespace

std::array<Stretch, 2> shard(Layout layout, std::int64_t rank, std::int64_t ranks, std::int64_t length)
{
    const std::int64_t chunks = layout == Layout::zigzag ? 2 * ranks : ranks;
    return {even_part(rank, chunks, length),
            layout == Layout::zigzag ? even_part(chunks - 1 - rank, chunks, length) : Stretch{}};
}

ShardPairs::ShardPairs(const Shape& shape, Layout layout, std::int64_t ranks)
    : entries_(shape.packed ? 1 : shape.batch), all_keys_(shape.packed ? shape.rows_k() : shape.seqlen_k)
{
    // A band without any diagonal has no keys, so where the next sequence begins is asked of the shape.
    const std::vector<std::int64_t> lengths_k = shape.packed ? shape.lengths_k() : std::vector{shape.seqlen_k};
    std::int64_t first_q = 0, first_k = 0;
    for (const Sequences& one : sequences_of(shape)) {
        const std::int64_t length_k = lengths_k[sequences_.size()];
        sequences_.push_back({first_q, first_k, one.band});
        first_q += one.band.q_len;
        first_k += length_k;
    }
    const std::int64_t all_queries = shape.packed ? shape.rows_q() : shape.seqlen_q;
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
        queries_.push_back(shard(layout, rank, ranks, all_queries));
        keys_.push_back(shard(layout, rank, ranks, all_keys_));
    }
}

std::int64_t ShardPairs::pairs_of(const Stretch& queries, const Stretch& keys) const
{
    if (queries.count == 0 || keys.count == 0) {
        return 0;
    }
    const auto end_before = [&](const Sequence& sequence) {
        return sequence.first_q + sequence.band.q_len <= queries.first ||
               sequence.first_k + sequence.band.k_len <= keys.first;
    };
    std::int64_t sum = 0;
    for (auto s = std::partition_point(sequences_.begin(), sequences_.end(), end_before);
         s != sequences_.end() && s->first_q < queries.first + queries.count && s->first_k < keys.first + keys.count;
         ++s) {
        sum += pairs_in(s->band, within(queries, s->first_q, s->band.q_len), within(keys, s->first_k, s->band.k_len));
    }
    return sum;
}

std::int64_t ShardPairs::pairs(std::int64_t rank, std::int64_t block) const
{
    std::int64_t sum = 0;
    for (const Stretch& queries : queries_[static_cast<std::size_t>(rank)]) {
        for (const Stretch& keys : keys_[static_cast<std::size_t>(block)]) {
            sum += pairs_of(queries, keys);
        }
    }
    return sum;
}

std::int64_t ShardPairs::pairs(std::int64_t rank) const
{
    std::int64_t sum = 0;
    for (const Stretch& queries : queries_[static_cast<std::size_t>(rank)]) {
        sum += pairs_of(queries, {0, all_keys_});
    }
    return sum;
}

} // namespace flashomp::cost
