// merge_rows() (algorithm/merge.hpp) by a thread of the host. On a GPU each element has a lane, which finds the weights
// of its row by itself. Here they are found once a row, and columns are innermost, where the vector units add them up.
#pragma once

#include "algorithm/merge.hpp"

namespace flashomp::offload {

/// f(pointer to the element type), of the elements at `data`.
template <class F>
FLASHOMP_INLINE void with_elements(void* data, Element element, F f)
{
    switch (element) {
    case Element::bfloat16:
        return f(static_cast<BFloat16*>(data));
    case Element::float16:
        return f(static_cast<Float16*>(data));
    case Element::float32:
        break;
    }
    f(static_cast<float*>(data));
}

/// sums[x] += weight · element x of a row, which is at `first`.
FLASHOMP_INLINE void add_weighted(float* sums, int columns, float weight, const MergePart& part, std::int64_t first)
{
    with_elements(part.o.data, part.element, [=](const auto* elements) FLASHOMP_LAMBDA {
#pragma omp simd
        for (int x = 0; x < columns; ++x) {
            sums[x] += weight * to_float(elements[first + x]);
        }
    });
}

/// Element x of the row at `first` becomes sums[x] / weights. Returns 0 if all sums are finite, and a NaN otherwise.
FLASHOMP_INLINE float write_weighted(const MergeParams& p, std::int64_t first, const float* sums, int columns,
                                     float weights)
{
    float nothing = 0.0F;
    with_elements(p.o.data, p.element, [=, &nothing](auto* elements) FLASHOMP_LAMBDA {
        float seen = 0.0F;
#pragma omp simd reduction(+ : seen)
        for (int x = 0; x < columns; ++x) {
            seen += sums[x] * 0.0F;
            from_float(weights != 0.0F ? sums[x] / weights : 0.0F, elements[first + x]);
        }
        nothing = seen;
    });
    return nothing;
}

/// Row r of a unit. Of each column all parts are read before it is written, and LSE comes last: outputs may be parts.
FLASHOMP_INLINE void merge_row_on_host(const MergeParams& p, const MergeUnit& at, int r)
{
    enum : int { most_columns = 128 }; // at a time
    const std::int64_t lse_first = at.lse_first + r, lse_second = at.lse_second + r;
    const float largest = largest_lse(p, lse_first, lse_second);
    float weights = 0.0F;
    for (int i = 0; i < p.parts; ++i) {
        weights += exp_difference(part_lse(p, lse_first, lse_second, i), largest);
    }
    float nothing = weights * 0.0F; // a NaN once anything is not finite
    for (int column = 0; column < p.depth; column += most_columns) {
        const int columns = p.depth - column < most_columns ? p.depth - column : most_columns;
        float sums[most_columns] = {};
        for (int i = 0; i < p.parts; ++i) {
            const float lse = part_lse(p, lse_first, lse_second, i);
            if (lse == -infinity) { // a part without keys may hold anything
                continue;
            }
            const bool is_second = i > 0 && p.stride_lse == 0;
            const MergePart& part = p.part[is_second ? 1 : 0];
            const std::int64_t first = is_second ? at.o_second : at.o_first + i * p.stride_o;
            add_weighted(sums, columns, exp_difference(lse, largest), part, first + r * part.o.row + column);
        }
        nothing += write_weighted(p, at.o + r * p.o.row + column, sums, columns, weights);
    }
    set_nonfinite(p.nonfinite, !(nothing == 0.0F));
    p.lse.data[at.lse + r] = merged_lse(largest, weights);
}

FLASHOMP_INLINE void merge_rows_on_host(const MergeParams& p, std::int64_t unit)
{
    const MergeUnit at = merge_unit(p, unit);
    for (int r = 0; r < at.rows; ++r) {
        merge_row_on_host(p, at, r);
    }
}

} // namespace flashomp::offload
