// A key source knows where the keys and values of one key head of one sequence lie. Kernels ask the source for rows and
// compute no address of a key themselves.
#pragma once

#include "algorithm/params.hpp"

#include <concepts>

#pragma omp declare target

namespace flashomp::offload {

/// keys() and values() are asked once for all rows that a kernel reads; slice() of what they return is a block of rows,
/// which goes to load() of the tile machine as it is.
///
/// StridedKeys returns Rows, which lie at one stride; PagedKeys (page_source.hpp) returns PagedRows, which lie in the
/// pages of a cache; QuantisedKeys (quantised_source.hpp) returns QuantisedRows, whose pages have 8 bits. A machine
/// that is to have them needs a load() for each.
template <class Source>
concept KeySource = requires(const Params& p, const Sequence& seq, int n)
{
    {
        Source::of(p, n)
        } -> std::same_as<Sequence>;                 // the rows of one sequence: batch
    slice(Source::keys(p, seq, n, n, n, n), n, n);   // of K: batch, key head, first row and count; first and most
    slice(Source::values(p, seq, n, n, n, n), n, n); // the same rows of V
};

/// Keys and values in tensors with strides, packed or not.
struct StridedKeys {
    static FLASHOMP_INLINE Sequence of(const Params& p, int batch) { return sequence(p, batch); }
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

/// Those of a contiguous cache, of which each sequence has as many as its length says.
struct CachedKeys : StridedKeys {
    static FLASHOMP_INLINE Sequence of(const Params& p, int batch) { return sequence_in_cache(p, batch); }
};

} // namespace flashomp::offload

#pragma omp end declare target
