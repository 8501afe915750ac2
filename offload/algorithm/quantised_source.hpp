// A cache of 8 bits as the third key source: pages (page_source.hpp) whose elements are numbers times a scale, one for
// each key head, or for each page and key head. A machine multiplies where it loads rows, so that nothing else of a
// kernel knows of scales.
#pragma once

#include "algorithm/element.hpp"
#include "algorithm/page_source.hpp"

#pragma omp declare target

namespace flashomp::offload {

/// Keys, or values, of one key head of one sequence.
struct QuantisedRows {
    PagedRows rows; ///< their Element is of no account
    CacheElement element = CacheElement::int8;
    const float* scales = nullptr; ///< of this head: of the sequence, or of page 0; null: 1. Then of the next heads
    std::int64_t scale_stride = 0; ///< from one page to the next; 0: one for all

    /// What row r of these is multiplied with.
    FLASHOMP_INLINE float scale(int r) const
    {
        if (scale_stride == 0) {
            return scales == nullptr ? 1.0F : *scales;
        }
        return scales[rows.numbers[(rows.first + r) / rows.page_rows] * scale_stride];
    }
};

/// At most `most` of the rows, from row `first` on.
FLASHOMP_INLINE QuantisedRows slice(QuantisedRows rows, int first, int most)
{
    rows.rows = slice(rows.rows, first, most);
    return rows;
}

/// Calls f(data) with the rows' elements, of whatever type they are.
template <class F>
FLASHOMP_INLINE void with_element(const QuantisedRows& rows, F f)
{
    if (rows.element == CacheElement::int8) {
        f(static_cast<const Int8*>(rows.rows.page0.data));
    } else {
        f(static_cast<const Float8*>(rows.rows.page0.data));
    }
}

struct QuantisedKeys {
    static FLASHOMP_INLINE Sequence of(const Params& p, int batch) { return sequence_in_cache(p, batch); }
    static FLASHOMP_INLINE QuantisedRows keys(const Params& p, const Sequence& seq, int batch, int head_kv, int first,
                                              int count)
    {
        return scaled(p, PagedKeys::keys(p, seq, batch, head_kv, first, count), p.cache.k_scale, p.cache.k_scale_stride,
                      batch, head_kv);
    }
    static FLASHOMP_INLINE QuantisedRows values(const Params& p, const Sequence& seq, int batch, int head_kv, int first,
                                                int count)
    {
        return scaled(p, PagedKeys::values(p, seq, batch, head_kv, first, count), p.cache.v_scale,
                      p.cache.v_scale_stride, batch, head_kv);
    }

private:
    static FLASHOMP_INLINE QuantisedRows scaled(const Params& p, const PagedRows& rows, const float* scales,
                                                std::int64_t stride, int batch, int head_kv)
    {
        if (scales == nullptr) {
            return {rows, p.cache.element, nullptr, 0};
        }
        if (p.cache.pages == nullptr) {
            return {rows, p.cache.element, scales + batch * stride + head_kv * p.cache.scale_head, 0};
        }
        return {rows, p.cache.element, scales + head_kv * p.cache.scale_head, stride};
    }
};

} // namespace flashomp::offload

#pragma omp end declare target
