// What the Hopper kernels of the backward pass have in common: their units of work, what they hand on, and the row
// statistics that they begin with.
#pragma once

#include "algorithm/finite_check.hpp"
#include "hopper_items.cuh"

namespace flashomp::cuda {

/// As for the forward pass; boxes are 64 columns of a query block's rows, or of a key block's.
struct BackwardMaps {
    CUtensorMap q, k, v, dout;
    BiasMap bias; ///< of a Modified shape
};

/// What the kernels of a backward call hand on. Rows are padded to whole query blocks.
struct BackwardScratch {
    unsigned* counters = nullptr; ///< of items: of the first kernel that draws them, and of a second
    float* lse = nullptr;   ///< base 2, or natural (Shape::is_natural); +inf for rows without keys and beyond the end
    float* delta = nullptr; ///< D = rowsum(dO∘O)
    int blocks = 0;         ///< query blocks of a head

    // Where all products are done in one pass, else null:
    int* turns = nullptr; ///< a query block: how many key blocks have added to its dQ
    float* dq = nullptr;  ///< [batch, head, query block] of tiles in the order of dq_place()

    /// Where a first pass repairs a natural LSE: what rounding took from it, base 2. In a sum with LSE it would be lost
    /// again.
    float* residual = nullptr;
};

/// A key block of one key head, and the query blocks that see it.
template <class Shape>
struct BackwardItem {
    int batch, head_kv, j0, group; ///< j0 < 0: there are no more
    int first, blocks;             ///< query blocks that see a key of this block
    int start;                     ///< where among them it begins
    int q_start, k_start;          ///< first rows of the sequence when packed
    offload::Band band;

    __device__ __forceinline__ bool is_end() const { return j0 < 0; }
    __device__ __forceinline__ void set_end() { j0 = -1; }

    __device__ __forceinline__ void set(const Params& p, const Schedule& schedule, int index)
    {
        const Schedule::Item item = schedule.item<Shape::is_modified>(index);
        batch = item.batch;
        head_kv = item.head;
        group = p.heads_q / p.heads_kv;
        j0 = item.block * Shape::block_n;
        const offload::Sequence sequence = offload::sequence(p, batch);
        q_start = static_cast<int>(sequence.q_start);
        k_start = static_cast<int>(sequence.k_start);
        band = offload::band_of(p, sequence);
        const Range queries = j0 < band.k_len ? band.queries(j0, min(j0 + Shape::block_n, band.k_len)) : Range{};
        first = queries.begin / Shape::block_m;
        blocks = queries.end > queries.begin ? (queries.end + Shape::block_m - 1) / Shape::block_m - first : 0;
        start = schedule.rotates ? item.block * blocks / schedule.blocks : 0;
    }

    /// Query heads of the group one after another; of each the blocks from the start's on, and then those before.
    __device__ __forceinline__ int steps() const { return group * blocks; }
    __device__ __forceinline__ int head(int step) const { return head_kv * group + step / blocks; }
    __device__ __forceinline__ int block(int step) const { return first + (start + step) % blocks; }

    /// When it is this key block's turn to add to the dQ of a query block to which `adding` key blocks do: in the order
    /// in which they get there, if they all begin at the same time.
    __device__ __forceinline__ int turn(const Schedule& schedule, const Range& adding, int query_block) const
    {
        const int own = j0 / Shape::block_n;
        if (schedule.rotates) { // the last that starts here or before comes first, then those before it
            const int newest = ((query_block + 1) * schedule.blocks - 1) / blocks;
            return newest >= own ? newest - own : newest - own + schedule.blocks;
        }
        return schedule.descending ? adding.end - 1 - own : own - adding.begin;
    }
};

/// Key blocks that add to a query block's dQ.
template <class Shape>
__device__ __forceinline__ Range key_blocks(const offload::Band& band, int block)
{
    const int i0 = block * Shape::block_m;
    if (i0 >= band.q_len) {
        return {};
    }
    const Range keys = band.keys(i0, min(i0 + Shape::block_m, band.q_len));
    return keys.end > keys.begin ? Range{keys.begin / Shape::block_n, (keys.end + Shape::block_n - 1) / Shape::block_n}
                                 : Range{};
}

/// Where a query block's statistics and dQ are in BackwardScratch.
__device__ __forceinline__ std::int64_t tile_of(const Params& p, const BackwardScratch& scratch, int batch, int head,
                                                int block)
{
    return (static_cast<std::int64_t>(batch) * p.heads_q + head) * scratch.blocks + block;
}

/// D, and LSE to base 2 or natural, padded to whole query blocks (FlashAttention-2, Algorithm 2, line 4). Eight lanes
/// have a row.
template <class Shape>
__global__ void hopper_rows_kernel(const __grid_constant__ Params p, const __grid_constant__ BackwardScratch scratch)
{
    using Math = typename Shape::Math;
    const int padded = scratch.blocks * Shape::block_m;
    const std::int64_t all = static_cast<std::int64_t>(p.batch) * p.heads_q * padded;
    const std::int64_t index = (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / 8;
    const unsigned part = threadIdx.x % 8;
    if (blockIdx.x == 0 && threadIdx.x < 2) {
        scratch.counters[threadIdx.x] = 0;
    }
    if (index >= all) {
        return;
    }
    const int row = static_cast<int>(index % padded);
    const int head = static_cast<int>(index / padded % p.heads_q);
    const int batch = static_cast<int>(index / padded / p.heads_q);
    if (scratch.turns != nullptr && row % Shape::block_m == 0 && part == 0) {
        scratch.turns[index / Shape::block_m] = 0;
    }
    const offload::Sequence sequence = offload::sequence(p, batch);
    const bool is_there = row < sequence.q_len;
    float sum = 0.0F;
    [[maybe_unused]] std::uint32_t gradient = 0; // 0: dO is
    if (is_there) {
        const auto* const o = static_cast<const std::uint16_t*>(p.o.data) + batch * p.o.batch + head * p.o.head +
                              (sequence.q_start + row) * p.o.row;
        const auto* const dout = static_cast<const std::uint16_t*>(p.dout.data) + batch * p.dout.batch +
                                 head * p.dout.head + (sequence.q_start + row) * p.dout.row;
        for (unsigned x = 8 * part; x < static_cast<unsigned>(p.head_dim_v); x += 64) {
            const uint4 a = *reinterpret_cast<const uint4*>(o + x);
            const uint4 b = *reinterpret_cast<const uint4*>(dout + x);
            const std::uint32_t left[4] = {a.x, a.y, a.z, a.w}, right[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                sum += Math::low(left[i]) * Math::low(right[i]) + Math::high(left[i]) * Math::high(right[i]);
                if constexpr (Shape::is_natural) {
                    gradient |= right[i] & 0x7FFF7FFFU;
                }
            }
        }
    }
#pragma unroll
    for (int apart = 4; apart > 0; apart /= 2) {
        const unsigned lanes = 0xFFU << (threadIdx.x % 32 / 8 * 8);
        sum += __shfl_xor_sync(lanes, sum, apart);
        if constexpr (Shape::is_natural) {
            gradient |= __shfl_xor_sync(lanes, gradient, apart);
        }
    }
    if (part == 0) {
        const float lse = is_there ? offload::row_stats(p.lse, batch, head, sequence.q_start)[row] : -infinity;
        scratch.lse[index] = lse == -infinity ? infinity : lse * (Shape::is_natural ? 1.0F : log2_e);
        scratch.delta[index] = sum;
        if constexpr (Shape::is_natural && Shape::repairs_lse) {
            scratch.residual[index] = 0.0F;
        } else if constexpr (Shape::is_natural) {
            // Of logits that large, as where a bias hides all keys of a row but for its own finite number, LSE has lost
            // the sum, and nothing in one pass repairs it: the call is computed by the kernels that do. A row whose dO
            // is 0, as padding's, has no gradients whatever its LSE.
            constexpr float most_exact = 4096.0F; // where LSE's rounding is a quarter of that of 16 bits
            const bool is_far = lse != -infinity && __builtin_fabsf(lse) >= most_exact;
            const bool may_be_far = p.alibi_slopes != nullptr || p.bias.data != nullptr;
            offload::set_nonfinite(p.nonfinite, is_there && is_far && may_be_far && gradient != 0);
        }
        if (is_there && p.delta.data != nullptr) { // for the gradients of a sink and a bias
            offload::row_stats(p.delta, batch, head, sequence.q_start)[row] = sum;
            offload::row_stats(p.residual, batch, head, sequence.q_start)[row] = 0.0F;
        }
    }
}

} // namespace flashomp::cuda
