// The end of a dK/dV item whose query heads are shared out (head_splits.hpp), on the tensor-core machines.
#pragma once

#include "algorithm/element.hpp"
#include "algorithm/finite_check.hpp"
#include "algorithm/forward.hpp"
#include "algorithm/head_splits.hpp"
#include "nvidia/last_crew.hpp"

#pragma omp declare target

namespace flashomp::offload {

/// Target rows = the sums of all splits, in their order. A block's rows follow one another in a split's sums, so lanes
/// take four floats at a time wherever they are (plan() asks for depths that are multiples of 4).
template <int warps>
FLASHOMP_INLINE void add_splits(const Params& p, const Rows& first_split, const Rows& target)
{
    constexpr int at_once = 8; // loads that do not wait for each other: all crews wait for this one at the end
    const auto* const parts = static_cast<const float*>(first_split.data) + first_split.offset;
    const std::int64_t apart = p.partial_keys * target.depth;
    const int end = target.count * target.depth;
    FiniteCheck check;
    for (int i = 4 * static_cast<int>(ptx::warp() * 32 + ptx::lane()); i < end; i += 4 * 32 * warps) {
        float sum[4] = {};
        for (int split = 0; split < p.head_splits; split += at_once) {
            ptx::Four part[at_once];
#pragma GCC unroll 8
            for (int s = 0; s < at_once; ++s) {
                part[s] = ptx::load_global_128(parts + (split + s) * apart + i, split + s < p.head_splits);
            }
#pragma GCC unroll 8
            for (int s = 0; s < at_once; ++s) {
#pragma GCC unroll 4
                for (int e = 0; e < 4; ++e) {
                    sum[e] += float_of(part[s].x[e]);
                }
            }
        }
        const int row = i / target.depth;
        const std::int64_t at = target.offset + row * target.stride + (i - row * target.depth);
#pragma GCC unroll 4
        for (int e = 0; e < 4; ++e) {
            write_element(target.data, target.element, at + e, sum[e]);
            check.see(sum[e], 0.0F);
        }
    }
    check.report(target.nonfinite);
}

/// dK and dV of the item's block, once all its crews have been here.
template <int warps>
FLASHOMP_INLINE void finish_splits(const Params& p, const WorkItem& work, int block_rows, unsigned* arrivals,
                                   std::uint32_t place)
{
    if (!is_last<warps>(arrivals, p.head_splits, place)) {
        return;
    }
    const Sequence seq = sequence(p, work.batch);
    const int left = seq.k_len - work.block * block_rows;
    const int rows = left < block_rows ? left : block_rows;
    const std::int64_t first = seq.k_start + work.block * block_rows;
    add_splits<warps>(p, partial_rows(p, p.partial_dk, 0, work.batch, work.head, first, rows, p.head_dim),
                      results_of(p, p.dk, work.batch, work.head, first, rows, p.head_dim));
    add_splits<warps>(p, partial_rows(p, p.partial_dv, 0, work.batch, work.head, first, rows, p.head_dim_v),
                      results_of(p, p.dv, work.batch, work.head, first, rows, p.head_dim_v));
}

} // namespace flashomp::offload

#pragma omp end declare target
