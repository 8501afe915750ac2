// A key source knows where the keys and values of one key head of one sequence lie. Kernels ask the source for rows and
// compute no address of a key themselves.
#pragma once

#include "algorithm/params.hpp"

#pragma omp declare target

namespace flashomp::offload {

/// keys() and values() are asked once for all rows that a kernel reads; slice() of what they return is a block of rows,
/// which goes to load() of the tile machine as it is.
///
/// Rows has both where rows lie at one stride. Pages are a second source: a cache [page, row, head, depth] is a Tensor
/// with pages for batches, so the rows of a page are rows_of() with the page's number, from the block table, for the
/// batch. keys() and values() then return a type of the source's own. Its slice() is Rows where a block lies within one
/// page. For blocks of several pages slice() returns the Rows of each page, and the machine needs a load() for them.
/// tests/unit/key_source_test.cpp has both.
template <class Source>
concept KeySource = requires(const Params& p, const Sequence& seq, int n)
{
    slice(Source::keys(p, seq, n, n, n, n), n, n);   // of K: batch, key head, first row and count; first and most
    slice(Source::values(p, seq, n, n, n, n), n, n); // the same rows of V
};

/// Keys and values in tensors with strides, packed or not.
struct StridedKeys {
    static FLASHOMP_INLINE Rows keys(const Params& p, const Sequence& seq, int batch, int head_kv, int first, int count)
    {
        return rows_of(p, p.k, batch, head_kv, seq.k_start + first, count, p.head_dim);
    }
    static FLASHOMP_INLINE Rows values(const Params& p, const Sequence& seq, int batch, int head_kv, int first,
                                       int count)
    {
        return rows_of(p, p.v, batch, head_kv, seq.k_start + first, count, p.head_dim_v);
    }
};

} // namespace flashomp::offload

#pragma omp end declare target
