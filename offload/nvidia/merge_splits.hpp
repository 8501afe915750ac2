// The end of a forward pass whose keys are split, on the tensor-core machines: the crew that is the last of a block's
// merges what all have left, as merge.hpp does. A launch for that would take OpenMP 40 us.
#pragma once

#include "algorithm/element.hpp"
#include "algorithm/finite_check.hpp"
#include "algorithm/forward.hpp"
#include "algorithm/math.hpp"
#include "launch/parts.hpp"
#include "nvidia/lanes.hpp"
#include "nvidia/last_crew.hpp"

#pragma omp declare target

namespace flashomp::offload {

/// Shared memory of weigh_parts() for so many rows.
constexpr int merge_bytes(int rows)
{
    return 4 * rows * (most_merged_parts + 1);
}

/// What each part of a row is worth: e^(its LSE - the largest), or -1 without keys; then 1 over the sum of them. A warp
/// has several rows at a time, so that their loads do not wait for each other.
template <int warps>
FLASHOMP_INLINE void weigh_parts(const Params& p, const float* parts_lse, float* lse, int rows, std::uint32_t memory)
{
    constexpr int rows_at_once = 2, halves = most_merged_parts / 32;
    const auto lane = static_cast<int>(ptx::lane());
    for (int first = static_cast<int>(ptx::warp()); first < rows; first += rows_at_once * warps) {
        float part[rows_at_once][halves];
        FLASHOMP_UNROLL(2)
        for (int r = 0; r < rows_at_once; ++r) {
            FLASHOMP_UNROLL(2)
            for (int h = 0; h < halves; ++h) {
                const int row = first + r * warps;
                const int split = 32 * h + lane;
                const bool is_there = (row < rows) & (split < p.splits);
                part[r][h] = ptx::load_global_32(parts_lse + row + split * p.partial_stride, is_there, -infinity);
            }
        }
        FLASHOMP_UNROLL(2)
        for (int r = 0; r < rows_at_once; ++r) {
            const int row = first + r * warps;
            float largest = -infinity;
            FLASHOMP_UNROLL(2)
            for (int h = 0; h < halves; ++h) {
                largest = part[r][h] > largest ? part[r][h] : largest; // never a NaN
            }
            largest = of_all_lanes(largest, [](float x, float y) FLASHOMP_LAMBDA { return ptx::max(x, y); });
            const float base = largest == -infinity ? 0.0F : largest; // so that -inf - base is no NaN
            float share[halves];
            float weights = 0.0F;
            FLASHOMP_UNROLL(2)
            for (int h = 0; h < halves; ++h) {
                share[h] = exp_difference(part[r][h], base);
                weights += share[h];
            }
            weights = of_all_lanes(weights, [](float x, float y) FLASHOMP_LAMBDA { return x + y; });
            if (row < rows) { // the whole warp
                const std::uint32_t place = memory + 4 * row * (most_merged_parts + 1);
                FLASHOMP_UNROLL(2)
                for (int h = 0; h < halves; ++h) {
                    ptx::store_shared_32(place + 4 * (32 * h + lane),
                                         bits_of(part[r][h] == -infinity ? -1.0F : share[h]));
                }
                if (lane == 0) {
                    ptx::store_shared_32(place + 4 * most_merged_parts,
                                         bits_of(weights != 0.0F ? 1.0F / weights : 0.0F));
                    lse[row] = merged_lse(base, weights);
                }
            }
        }
    }
}

/// o and LSE of the block that all its crews have been at: `work` is the item of any of them. Lanes take four columns
/// of a row at a time (plan() asks for a head_dim_v that is a multiple of 4). memory: shared, that of weigh_parts().
template <int warps, int block_rows>
FLASHOMP_INLINE void merge_splits(const Params& p, const WorkItem& work, std::uint32_t memory)
{
    static_assert(merge_bytes(block_rows) <= team_memory_bytes - 16);
    constexpr int at_once = 16; // loads that do not wait for each other: the call waits for this
    const Sequence seq = sequence(p, work.batch);
    const int left = seq.q_len - work.block * block_rows;
    const int rows = left < block_rows ? left : block_rows;
    const std::int64_t first = seq.q_start + work.block * block_rows;
    const Rows target = results_of(p, p.o, work.batch, work.head, first, rows, p.head_dim_v);
    const float* const parts_lse = row_stats(p.partial_lse, work.batch, work.head, first);
    const float* const parts = p.partial_o + (parts_lse - p.partial_lse.data) * target.depth;
    const std::int64_t apart = p.partial_stride * target.depth;
    const int end = rows * target.depth;
    weigh_parts<warps>(p, parts_lse, row_stats(p.lse, work.batch, work.head, first), rows, memory);
    ptx::barrier<32 * warps>();
    FiniteCheck check;
    constexpr int of_warp = 4 * 32;
    for (int begin = of_warp * static_cast<int>(ptx::warp()); begin < end; begin += of_warp * warps) {
        const int mine = begin + 4 * static_cast<int>(ptx::lane());
        const int i = mine < end ? mine : 0; // the same work twice, so that no lane is missing at the barrier
        const int row = i / target.depth;
        const int column = i - row * target.depth;
        const std::uint32_t shares = memory + 4 * row * (most_merged_parts + 1);
        float sum[4] = {};
        for (int split = 0; split < p.splits; split += at_once) {
            ptx::Four part[at_once];
            FLASHOMP_UNROLL(16)
            for (int s = 0; s < at_once; ++s) {
                part[s] = ptx::load_global_128(parts + (split + s) * apart + i, split + s < p.splits);
            }
            ptx::warp_barrier(); // else ptxas puts each load before its use, and all wait one after the other
            FLASHOMP_UNROLL(16)
            for (int s = 0; s < at_once; ++s) {
                const float share = ptx::load_shared(shares + 4 * (split + s));
                FLASHOMP_UNROLL(4)
                for (int e = 0; e < 4; ++e) {
                    // Without keys a part may hold anything.
                    sum[e] += share < 0.0F ? 0.0F : share * float_of(part[s].x[e]);
                }
            }
        }
        const float inverse = ptx::load_shared(shares + 4 * most_merged_parts);
        const std::int64_t at = target.offset + row * target.stride + column;
        FLASHOMP_UNROLL(4)
        for (int e = 0; e < 4; ++e) {
            write_element(target.data, target.element, at + e, sum[e] * inverse);
            check.see(sum[e], 0.0F);
        }
        check.see(inverse, 0.0F);
    }
    check.report(target.nonfinite);
}

} // namespace flashomp::offload

#pragma omp end declare target
