// Putting attention over parts of the keys together: the parts' outputs, weighted by what their LSE says of their share
// of the whole denominator (the merge of FlashAttention's split keys; ring and paged attention use the same identity).
#pragma once

#include "algorithm/element.hpp"
#include "algorithm/finite_check.hpp"
#include "algorithm/math.hpp"

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
    unsigned* nonfinite = nullptr; ///< Params::nonfinite
};

/// Rows are merged in units: up to so many that follow one another in one head, or single ones where a head has fewer,
/// as in decoding, so that there is work for many crews.
FLASHOMP_INLINE int merge_unit_rows(const MergeParams& p)
{
    constexpr int most = 16;
    return p.length < most ? 1 : most;
}

FLASHOMP_INLINE std::int64_t merge_units(const MergeParams& p)
{
    const int rows = merge_unit_rows(p);
    return std::int64_t{p.batch} * p.heads * ((p.length + rows - 1) / rows);
}

// Below, numbers only: g++ 12 crashes (ompdevlow) on a struct with a constructor that lives inside a simd loop.

/// LSE of a row in part i; the row is at `first` in part[0], at `second` in part[1].
FLASHOMP_INLINE float part_lse(const MergeParams& p, std::int64_t first, std::int64_t second, int i)
{
    const bool is_second = i > 0 && p.stride_lse == 0;
    return is_second ? p.part[1].lse.data[second] : p.part[0].lse.data[first + i * p.stride_lse];
}

FLASHOMP_INLINE float part_value(const MergeParams& p, std::int64_t first, std::int64_t second, int i)
{
    const bool is_second = i > 0 && p.stride_lse == 0;
    const MergePart& part = p.part[is_second ? 1 : 0];
    return read_element(part.o.data, part.element, is_second ? second : first + i * p.stride_o);
}

/// The largest LSE of the parts; 0 where all are -inf, so that -inf - largest is no NaN.
FLASHOMP_INLINE float largest_lse(const MergeParams& p, std::int64_t first, std::int64_t second)
{
    float largest = -infinity;
    FLASHOMP_UNROLL(8) // loads under way at one time
    for (int i = 0; i < p.parts; ++i) {
        const float lse = part_lse(p, first, second, i);
        largest = lse > largest ? lse : largest;
    }
    return largest == -infinity ? 0.0F : largest;
}

/// weights: the sum of e^(part's LSE - largest); 0 where no part has keys, NaN where one's LSE is.
FLASHOMP_INLINE float merged_lse(float largest, float weights)
{
    const float alive = weights < infinity ? largest + log2_fast(weights) * ln_2 : weights;
    return weights == 0.0F ? -infinity : alive;
}

/// Where the rows of a unit are: offsets of the first one. Found once a unit: a division of 64 bits is a function call
/// on a GPU, and with four to each element of each part a merge of 64 parts of a few rows took half a millisecond.
struct MergeUnit {
    int rows;
    std::int64_t o, o_first, o_second;
    std::int64_t lse, lse_first, lse_second;
};

FLASHOMP_INLINE MergeUnit merge_unit(const MergeParams& p, std::int64_t unit)
{
    const int most = merge_unit_rows(p);
    const int units = (p.length + most - 1) / most; // of a head
    const std::int64_t head_of_all = unit / units;
    const int first = static_cast<int>(unit - head_of_all * units) * most;
    const int rows = p.length - first < most ? p.length - first : most;
    const int batch = static_cast<int>(head_of_all / p.heads);
    const int head = static_cast<int>(head_of_all - std::int64_t{batch} * p.heads);
    const auto in = [=](const Tensor& t) FLASHOMP_LAMBDA { return batch * t.batch + head * t.head + first * t.row; };
    const auto in_rows = [=](const RowTensor& t) FLASHOMP_LAMBDA { return batch * t.batch + head * t.head + first; };
    return {rows,
            in(p.o),
            in(p.part[0].o),
            in(p.part[1].o),
            in_rows(p.lse),
            in_rows(p.part[0].lse),
            in_rows(p.part[1].lse)};
}

/// o and LSE of the rows of a unit, a lane for each element (threads of the host: host/merge_on_host.hpp). An element
/// of o is read by the thread that writes it, and LSE is written after everyone has read it, so outputs may be the
/// parts themselves.
template <class Machine>
FLASHOMP_INLINE void merge_rows(Machine& tile, const MergeParams& p, std::int64_t unit)
{
    const MergeParams* const params = &p;
    const MergeUnit at = merge_unit(p, unit);
    const int rows = at.rows;
    const std::int64_t o = at.o, o_first = at.o_first, o_second = at.o_second;
    const std::int64_t lse = at.lse, lse_first = at.lse_first, lse_second = at.lse_second;

    tile.for_elements(rows, p.depth, [=](int r, int x) FLASHOMP_LAMBDA {
        const std::int64_t x_first = o_first + r * params->part[0].o.row + x;
        const std::int64_t x_second = o_second + r * params->part[1].o.row + x;
        const float largest = largest_lse(*params, lse_first + r, lse_second + r);
        float weights = 0.0F;
        float sum = 0.0F;
        FLASHOMP_UNROLL(8)
        for (int i = 0; i < params->parts; ++i) {
            const float part = part_lse(*params, lse_first + r, lse_second + r, i);
            const float weight = exp_difference(part, largest);
            weights += weight;
            // A part without keys may hold anything. One whose weight is 0 only by rounding shows its NaN.
            sum += part != -infinity ? weight * part_value(*params, x_first, x_second, i) : 0.0F;
        }
        write_element(params->o.data, params->element, o + r * params->o.row + x,
                      weights != 0.0F ? sum / weights : 0.0F);
        set_nonfinite(params->nonfinite, !is_finite(sum) | !is_finite(weights));
    });
    tile.sync();
    tile.for_rows(rows, [=](int r) FLASHOMP_LAMBDA {
        const float largest = largest_lse(*params, lse_first + r, lse_second + r);
        float weights = 0.0F;
        FLASHOMP_UNROLL(8)
        for (int i = 0; i < params->parts; ++i) {
            weights += exp_difference(part_lse(*params, lse_first + r, lse_second + r, i), largest);
        }
        params->lse.data[lse + r] = merged_lse(largest, weights);
    });
    tile.sync();
}

} // namespace flashomp::offload

#pragma omp end declare target
