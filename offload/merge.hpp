// Putting attention over parts of the keys together: the parts' outputs, weighted by what their LSE says of their share
// of the whole denominator (the merge of FlashAttention's split keys; ring and paged attention use the same identity).
#pragma once

#include "tile/element.hpp"
#include "tile/math.hpp"

#pragma omp declare target

namespace flashomp::offload {

/// One part, or a run of parts that lie a fixed distance apart.
struct MergePart {
    Tensor o;
    RowTensor lse;
    Element element = Element::float32;
};

struct MergeParams {
    int parts = 0;
    MergePart part[2]; ///< the two parts; with `stride` > 0 only the first, repeated
    std::int64_t stride_o = 0, stride_lse = 0;
    int batch = 0, heads = 0, length = 0, depth = 0; ///< lse is [batch, heads, length]
    Tensor o;
    RowTensor lse;
    Element element = Element::float32;
};

// Below, numbers only: g++ 12 crashes (ompdevlow) on a struct with a constructor that lives inside a simd loop.

/// Offset of row `row` of the flattened [batch, heads, length] in a tensor with these strides.
FLASHOMP_INLINE std::int64_t merge_offset(const MergeParams& p, std::int64_t row, std::int64_t batch_stride,
                                          std::int64_t head_stride, std::int64_t row_stride)
{
    return row / p.length / p.heads * batch_stride + row / p.length % p.heads * head_stride +
           row % p.length * row_stride;
}

FLASHOMP_INLINE std::int64_t merge_offset(const MergeParams& p, std::int64_t row, const Tensor& t)
{
    return merge_offset(p, row, t.batch, t.head, t.row);
}

/// LSE of a row in part i.
FLASHOMP_INLINE float part_lse(const MergeParams& p, std::int64_t row, int i)
{
    const RowTensor& t = i > 0 && p.stride_lse == 0 ? p.part[1].lse : p.part[0].lse;
    return t.data[merge_offset(p, row, t.batch, t.head, 1) + i * p.stride_lse];
}

FLASHOMP_INLINE float part_value(const MergeParams& p, std::int64_t row, int i, int x)
{
    const MergePart& part = i > 0 && p.stride_lse == 0 ? p.part[1] : p.part[0];
    return read_element(part.o.data, part.element, merge_offset(p, row, part.o) + i * p.stride_o + x);
}

/// The largest LSE of the parts; 0 where all are -inf, so that -inf - largest is no NaN.
FLASHOMP_INLINE float largest_lse(const MergeParams& p, std::int64_t row)
{
    float largest = -infinity;
    for (int i = 0; i < p.parts; ++i) {
        const float lse = part_lse(p, row, i);
        largest = lse > largest ? lse : largest;
    }
    return largest == -infinity ? 0.0F : largest;
}

/// o and LSE of rows [first, first + rows). An element of o is read by the thread that writes it, and LSE is written
/// after everyone has read it, so outputs may be the parts themselves.
template <class Machine>
FLASHOMP_INLINE void merge_rows(Machine& tile, const MergeParams& p, std::int64_t first, int rows)
{
    const MergeParams* const params = &p;
    tile.for_elements(rows, p.depth, [=](int r, int x) FLASHOMP_LAMBDA {
        const std::int64_t row = first + r;
        const float largest = largest_lse(*params, row);
        float weights = 0.0F;
        float sum = 0.0F;
        for (int i = 0; i < params->parts; ++i) {
            const float weight = exp_difference(part_lse(*params, row, i), largest);
            weights += weight;
            sum +=
                weight > 0.0F ? weight * part_value(*params, row, i, x) : 0.0F; // a part without keys may hold anything
        }
        write_element(params->o.data, params->element, merge_offset(*params, row, params->o) + x,
                      weights > 0.0F ? sum / weights : 0.0F);
    });
    tile.sync();
    tile.for_rows(rows, [=](int r) FLASHOMP_LAMBDA {
        const std::int64_t row = first + r;
        const float largest = largest_lse(*params, row);
        float weights = 0.0F;
        for (int i = 0; i < params->parts; ++i) {
            weights += exp_difference(part_lse(*params, row, i), largest);
        }
        const RowTensor& t = params->lse;
        t.data[merge_offset(*params, row, t.batch, t.head, 1)] =
            weights > 0.0F ? largest + log2_fast(weights) * ln_2 : -infinity;
    });
    tile.sync();
}

} // namespace flashomp::offload

#pragma omp end declare target
