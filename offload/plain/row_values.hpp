// Rows that the sliced machine reads where they lie, in a tensor or in a cache, as floats.
#pragma once

#include "algorithm/element.hpp"
#include "algorithm/quantised_source.hpp"

#pragma omp declare target

namespace flashomp::offload {

/// An element of rows where they lie, as a float; zero beyond the rows' ends, where sums of padded tiles look.
template <class E>
struct Values {
    const E* first;
    std::int64_t stride;
    int count, depth;

    FLASHOMP_INLINE explicit Values(const Rows& rows)
        : first(static_cast<const E*>(rows.data) + rows.offset), stride(rows.stride), count(rows.count),
          depth(rows.depth)
    {
    }
    FLASHOMP_INLINE float operator()(int c, int x) const
    {
        return c < count && x < depth ? to_float(first[c * stride + x]) : 0.0F;
    }
};

/// The same of rows in a cache, whose places were looked up (CacheRows).
template <class E>
struct CacheValues {
    const E* data;
    const std::int64_t* offsets;
    const float* scales;
    int count, depth;

    FLASHOMP_INLINE float operator()(int c, int x) const
    {
        return c < count && x < depth ? to_float(data[offsets[c] + x]) * scales[c] : 0.0F;
    }
};

/// Calls f(value), where value(c, x) is element x of row c, of the rows that are there.
template <class F>
FLASHOMP_INLINE void with_values_of(const Rows& rows, F f)
{
    switch (rows.element) {
    case Element::float32:
        return f(Values<float>(rows));
    case Element::bfloat16:
        return f(Values<BFloat16>(rows));
    case Element::float16:
        return f(Values<Float16>(rows));
    }
}

/// A block's rows in a cache. Where each lies, and what its elements are multiplied with, is looked up once for the
/// block: elements are read one by one, and each would cost a division and two loads more.
/// Found: PagedRows or QuantisedRows.
template <class Found>
struct CacheRows {
    Found rows;
    std::int64_t* offsets = nullptr; ///< in team memory, for each row of a block
    float* scales = nullptr;

    enum : int { floats_of_row = 3 }; ///< of offsets and scales, which begin where a block's slices would
};

FLASHOMP_INLINE const PagedRows& pages_of(const PagedRows& rows)
{
    return rows;
}
FLASHOMP_INLINE const PagedRows& pages_of(const QuantisedRows& rows)
{
    return rows.rows;
}
FLASHOMP_INLINE float scale_of(const PagedRows&, int)
{
    return 1.0F;
}
FLASHOMP_INLINE float scale_of(const QuantisedRows& rows, int r)
{
    return rows.scale(r);
}

template <class F>
FLASHOMP_INLINE void with_values_of(const CacheRows<PagedRows>& cached, F f)
{
    const Rows& page0 = cached.rows.page0;
    const auto call = [&]<class E>(const E* data) FLASHOMP_LAMBDA {
        f(CacheValues<E>{data, cached.offsets, cached.scales, cached.rows.count, page0.depth});
    };
    switch (page0.element) {
    case Element::float32:
        return call(static_cast<const float*>(page0.data));
    case Element::bfloat16:
        return call(static_cast<const BFloat16*>(page0.data));
    case Element::float16:
        return call(static_cast<const Float16*>(page0.data));
    }
}

template <class F>
FLASHOMP_INLINE void with_values_of(const CacheRows<QuantisedRows>& cached, F f)
{
    const PagedRows& pages = cached.rows.rows;
    with_element(cached.rows, [&]<class E>(const E* data) FLASHOMP_LAMBDA {
        f(CacheValues<E>{data, cached.offsets, cached.scales, pages.count, pages.page0.depth});
    });
}

} // namespace flashomp::offload

#pragma omp end declare target
