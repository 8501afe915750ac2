// The end of a forward pass whose keys are split, on the tensor-core machines: the crew that is the last of a block's
// merges what all have left, as merge.hpp does. A launch for that would take 40 us.
#pragma once

#include "algorithm/element.hpp"
#include "algorithm/finite_check.hpp"
#include "algorithm/forward.hpp"
#include "algorithm/math.hpp"
#include "nvidia/last_crew.hpp"

#pragma omp declare target

namespace flashomp::offload {

/// o and LSE of the block that all its crews have been at: `work` is the item of any of them. Lanes take four columns
/// of a row at a time (plan() asks for a head_dim_v that is a multiple of 4).
template <int warps>
FLASHOMP_INLINE void merge_splits(const Params& p, const WorkItem& work, int block_rows)
{
    constexpr int at_once = 8; // loads that do not wait for each other: the call waits for this
    const Sequence seq = sequence(p, work.batch);
    const int left = seq.q_len - work.block * block_rows;
    const int rows = left < block_rows ? left : block_rows;
    const std::int64_t first = seq.q_start + work.block * block_rows;
    const Rows target = results_of(p, p.o, work.batch, work.head, first, rows, p.head_dim_v);
    float* const lse = row_stats(p.lse, work.batch, work.head, first);
    const float* const parts_lse = row_stats(p.partial_lse, work.batch, work.head, first);
    const float* const parts = p.partial_o + (parts_lse - p.partial_lse.data) * target.depth;
    const std::int64_t apart = p.partial_stride * target.depth;
    const int end = rows * target.depth;
    FiniteCheck check;
    for (int i = 4 * static_cast<int>(ptx::warp() * 32 + ptx::lane()); i < end; i += 4 * 32 * warps) {
        const int row = i / target.depth;
        const int column = i - row * target.depth;
        float largest = -infinity;
        float weights = 0.0F;
        float sum[4] = {};
        for (int split = 0; split < p.splits; split += at_once) {
            ptx::Four part[at_once];
            float weight[at_once];
#pragma GCC unroll 8
            for (int s = 0; s < at_once; ++s) {
                const bool there = split + s < p.splits;
                part[s] = ptx::load_global_128(parts + (split + s) * apart + i, there);
                weight[s] = there ? parts_lse[row + (split + s) * p.partial_stride] : -infinity;
            }
            const float before = largest;
#pragma GCC unroll 8
            for (int s = 0; s < at_once; ++s) {
                largest = weight[s] > largest ? weight[s] : largest;
            }
            const float base = largest == -infinity ? 0.0F : largest; // so that -inf - base is no NaN
            const float kept = exp_difference(before, base);
            weights *= kept;
#pragma GCC unroll 4
            for (int e = 0; e < 4; ++e) {
                sum[e] *= kept;
            }
#pragma GCC unroll 8
            for (int s = 0; s < at_once; ++s) {
                const float share = exp_difference(weight[s], base);
                weights += share;
#pragma GCC unroll 4
                for (int e = 0; e < 4; ++e) {
                    // Without keys a part may hold anything.
                    sum[e] += weight[s] != -infinity ? share * float_of(part[s].x[e]) : 0.0F;
                }
            }
        }
        const std::int64_t at = target.offset + row * target.stride + column;
#pragma GCC unroll 4
        for (int e = 0; e < 4; ++e) {
            write_element(target.data, target.element, at + e, weights != 0.0F ? sum[e] / weights : 0.0F);
            check.see(sum[e], 0.0F);
        }
        check.see(weights, 0.0F);
        if (column == 0) {
            lse[row] = merged_lse(largest == -infinity ? 0.0F : largest, weights);
        }
    }
    check.report(target.nonfinite);
}

} // namespace flashomp::offload

#pragma omp end declare target
