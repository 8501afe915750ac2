// The gradient of a bias on Hopper: backward_bias_block() (offload/algorithm/backward_options.hpp) in 16 bits. A block
// of the bias stays, in registers, and the tiles of dS that read it are computed one after another, in an order that
// does not depend on who computes them. What a tile needs streams: 64 keys and values, and, where they are others than
// the last tile's, 128 queries and dO.
//
// Two warpgroups have 64 query rows each. They do not wait for each other, so that one's products run while the other
// makes dS of its own.
#pragma once

#include "backward_items.cuh"
#include "bias_tiles.cuh"
#include "tile/block_logits.cuh"
#include "tile/products.cuh"
#include "tile/warpgroup.cuh"

namespace flashomp::cuda {

/// 16-bit type, head_dim and head_dim_v rounded up. Kernels are those of a Modified shape.
template <class Math_, int depth_, int depth_v_>
struct BiasShape {
    using Math = Math_;
    static constexpr int depth = depth_, depth_v = depth_v_, block_m = 128, block_n = 64;
    static constexpr int groups = 2, threads = 128 * (groups + 1);
    static constexpr int panels = depth / 64, panels_v = depth_v / 64;
    static constexpr int q_bytes = block_m * panels * 128, dout_bytes = block_m * panels_v * 128;
    static constexpr int k_bytes = block_n * panels * 128, v_bytes = block_n * panels_v * 128;
    static constexpr int bias_queries = 64, bias_keys = block_n, bias_parts = groups;
    // As there is room for:
    static constexpr int q_stages = depth <= 128 ? 2 : 1;
    static constexpr int stages = depth <= 64 ? 4 : depth <= 128 ? 2 : depth <= 192 ? 3 : 1;
};

template <class Shape>
struct BiasMemory {
    alignas(1024) unsigned char q[Shape::q_stages][Shape::q_bytes];
    alignas(1024) unsigned char dout[Shape::q_stages][Shape::dout_bytes];
    alignas(1024) unsigned char k[Shape::stages][Shape::k_bytes];
    alignas(1024) unsigned char v[Shape::stages][Shape::v_bytes];
    BiasBlock<Shape> bias;
    float column_sums[4 * Shape::groups][Shape::block_n];      ///< of each warp
    Barrier q_full[Shape::q_stages], q_empty[Shape::q_stages]; ///< of q and dO
    Barrier k_full[Shape::stages], k_empty[Shape::stages];     ///< of k and v
    BiasBarriers<Shape> bias_barriers;
};

/// The copying thread.
template <class Shape>
__device__ __forceinline__ void bring_bias(BiasMemory<Shape>& memory, const Params& p, const BackwardMaps& maps)
{
    RingPlace<Shape::q_stages> q;
    RingPlace<Shape::stages> k;
    RingPlace<1> bias;
    const auto bring = [&](const BiasTile& tile) {
        if (tile.has_new_queries) {
            const MapRows queries = queries_in_map(p, tile, tile.head).from(tile.i0);
            Barrier& full = memory.q_full[q.index];
            memory.q_empty[q.index].wait(q.parity ^ 1U);
            full.expect(Shape::q_bytes + Shape::dout_bytes);
            copy_panels<Shape::block_m, Shape::panels>(memory.q[q.index], maps.q, queries, full);
            copy_panels<Shape::block_m, Shape::panels_v>(memory.dout[q.index], maps.dout, queries, full);
            q.advance();
        }
        const MapRows keys = keys_in_map(p, tile).from(tile.j0);
        Barrier& full = memory.k_full[k.index];
        memory.k_empty[k.index].wait(k.parity ^ 1U);
        full.expect(Shape::k_bytes + Shape::v_bytes);
        copy_panels<Shape::block_n, Shape::panels>(memory.k[k.index], maps.k, keys, full);
        copy_panels<Shape::block_n, Shape::panels_v>(memory.v[k.index], maps.v, keys, full);
        k.advance();
        if (maps.bias.is_there) {
            memory.bias_barriers.template bring<false>(memory.bias, maps.bias, bias,
                                                       maps.bias.queries(tile.batch, tile.head, tile.i0), tile.j0);
        }
    };
    BiasTiles<Shape>(p).for_each(bring, [] {});
}

/// One computing warpgroup: rows [64·group, 64·group + 64) of each tile.
template <class Shape>
class BiasGroup {
public:
    __device__ __forceinline__ BiasGroup(BiasMemory<Shape>& memory, const Params& p, bool brings_bias, int group)
        : memory_(memory), p_(p), group_(group), tiles_(p), logits_(memory, p, brings_bias, group)
    {
    }

    __device__ __forceinline__ void run()
    {
        float total[pairs] = {};
        const auto end = [&] {
            store(total);
#pragma unroll
            for (float& x : total) {
                x = 0.0F;
            }
        };
        tiles_.for_each([&](const BiasTile& tile) { add(tile, total); }, end);
    }

private:
    using Math = typename Shape::Math;
    static constexpr int block_m = Shape::block_m, block_n = Shape::block_n;
    static constexpr int pairs = block_n / 2; // of a lane

    /// total += P∘(dP - D), before the slope of a softcap: the bias is added behind it.
    __device__ __forceinline__ void add(const BiasTile& tile, float (&total)[pairs])
    {
        const int row = tile.i0 + 64 * group_ + at_.row(), column = tile.j0 + at_.column();
        if (tile.has_new_queries) {
            take_queries(tile, row);
        }
        const int stage = k_.index;
        float s[pairs], dp[pairs];
        memory_.k_full[stage].wait(k_.parity);
        fence_products();
        issue_scores<Math, block_m, Shape::depth>(s, memory_.q[q_.index], 64 * group_, memory_.k[stage]);
        issue_scores<Math, block_m, Shape::depth_v>(dp, memory_.dout[q_.index], 64 * group_, memory_.v[stage]);
        commit_products();
        logits_.draw(tile, tile.head, row, column);
        wait_products<0>();
        pin(s);
        pin(dp);
        at_.release(memory_.k_empty[stage]);
        k_.advance();

        logits_.make(s, tile, tile.head, row, column, hides_any(tile), [&] { hide(s, tile); });
        const LogitExponent<Shape> exponent{1.0F}; // as there is a bias
#pragma unroll
        for (int i = 0; i < pairs; ++i) {
            const int half = i / 2 % 2;
            const float p = ptx::exp2_approx(exponent(s[i], lse_[half], residual_[half]));
            const float ds = p * __builtin_fmaf(logits_.kept().of(dp[i], i), p_.dropout_scale, -delta_[half]);
            total[i] += p == 0.0F ? 0.0F : ds; // where a pair is hidden, dP may be no number
        }
    }

    /// The last ones' place is free, and these are there, with their statistics.
    __device__ __forceinline__ void take_queries(const BiasTile& tile, int row)
    {
        if (has_queries_) {
            at_.release(memory_.q_empty[q_.index]);
            q_.advance();
        }
        has_queries_ = true;
        keys_.set_keys(tile.band, row);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int i = row + 8 * half;
            const bool is_there = i < tile.band.q_len;
            keys_.count[half] = is_there ? keys_.count[half] : 0U;
            const auto of_row = [&](const offload::RowTensor& statistic) {
                return is_there ? offload::row_stats(statistic, tile.batch, tile.head, tile.q_start)[i] : 0.0F;
            };
            lse_[half] = offload::usable_lse(of_row(p_.lse));
            delta_[half] = of_row(p_.delta);
            residual_[half] = of_row(p_.residual);
        }
        memory_.q_full[q_.index].wait(q_.parity);
    }

    __device__ __forceinline__ bool hides_any(const BiasTile& tile) const
    {
        const int end = tile.i0 + block_m;
        if (end > tile.band.q_len || p_.key_padding_mask != nullptr) {
            return true;
        }
        const Range interior = tile.band.interior_keys(tile.i0, end);
        return tile.j0 < interior.begin || tile.j0 + block_n > interior.end;
    }

    __device__ __forceinline__ void hide(float (&s)[pairs], const BiasTile& tile) const
    {
        const int column = tile.j0 + at_.column();
        keys_.hide(s, column);
        if (const std::uint8_t* const padding = padding_of(p_, tile.batch)) {
            hide_padding(s, column, tile.band.k_len, padding);
        }
    }

    __device__ __forceinline__ void store(const float (&total)[pairs])
    {
        const std::int64_t head = tiles_.batch() * p_.dbias.batch + tiles_.head() * p_.dbias.head;
        const int row = tiles_.first_query() + 64 * group_ + at_.row();
        const int column = tiles_.first_key();
        if (tiles_.over_query()) {
            store_column_sums(head, column, tiles_.over_key(), total);
            return;
        }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int i = row + 8 * half;
            const std::int64_t first = head + i * p_.dbias.query;
            if (tiles_.over_key()) {
                store_row_sum(first, i < p_.seqlen_q, half, total);
            } else if (i < p_.seqlen_q) {
                store_pairs(first, column + at_.column(), half, total);
            }
        }
    }

    /// One of a lane's two rows.
    __device__ __forceinline__ void store_pairs(std::int64_t first, int column, int half,
                                                const float (&total)[pairs]) const
    {
        const bool is_whole = tiles_.first_key() + block_n <= p_.seqlen_k;
        const bool is_aligned = first % 2 == 0 && reinterpret_cast<std::uintptr_t>(p_.dbias.data) % 8 == 0;
        if (!is_whole || !is_aligned ||
            p_.dbias.key != 1) { // apart from the rest, which the instruction cache then holds
            store_elements(first, column, half, total);
        } else if (p_.dbias.element == offload::Element::float32) {
            auto* const target = static_cast<float*>(p_.dbias.data) + first + column;
#pragma unroll
            for (int i = 2 * half; i < pairs; i += 4) {
                *reinterpret_cast<float2*>(target + i / 4 * 8) = make_float2(total[i], total[i + 1]);
            }
        } else {
            auto* const target = static_cast<std::uint16_t*>(p_.dbias.data) + first + column;
#pragma unroll
            for (int i = 2 * half; i < pairs; i += 4) {
                *reinterpret_cast<std::uint32_t*>(target + i / 4 * 8) = Math::pack(total[i], total[i + 1]);
            }
        }
    }

    __device__ __forceinline__ void store_elements(std::int64_t first, int column, int half,
                                                   const float (&total)[pairs]) const
    {
#pragma unroll
        for (int i = 2 * half; i < pairs; i += 4) {
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                const int j = column + i / 4 * 8 + e;
                if (j < p_.seqlen_k) {
                    write(first + j * p_.dbias.key, total[i + e]);
                }
            }
        }
    }

    /// All keys of one of a lane's two rows, which four lanes share.
    __device__ __forceinline__ void store_row_sum(std::int64_t at, bool is_there, int half, const float (&total)[pairs])
    {
        float sum = 0.0F;
#pragma unroll
        for (int n = 0; n < pairs / 4; ++n) {
            sum += total[4 * n + 2 * half] + total[4 * n + 2 * half + 1];
        }
        sum = row_sum(sum);
        if (is_there && at_.lane % 4 == 0) {
            write(at, sum);
        }
    }

    /// All queries of each key, and all keys where over_key.
    __device__ __forceinline__ void store_column_sums(std::int64_t head, int column, bool over_key,
                                                      const float (&total)[pairs])
    {
        float* const of_warp = memory_.column_sums[4 * group_ + at_.warp];
#pragma unroll
        for (int i = 0; i < pairs; i += 4) {
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                float sum = total[i + e] + total[i + 2 + e];
#pragma unroll
                for (int apart = 4; apart < 32; apart *= 2) {
                    sum += __shfl_xor_sync(0xFFFFFFFFU, sum, apart);
                }
                if (at_.lane < 4) {
                    of_warp[2 * i + at_.column() + e] = sum;
                }
            }
        }
        sync_threads(both_groups, 256);
        const int own = static_cast<int>(threadIdx.x % 128);
        if (group_ == 0 && own < block_n) {
            float sum = 0.0F;
            for (const auto& warp : memory_.column_sums) {
                sum += warp[own];
            }
            memory_.column_sums[0][own] = sum;
            if (!over_key && column + own < p_.seqlen_k) {
                write(head + (column + own) * p_.dbias.key, sum);
            }
        }
        sync_threads(both_groups, 256);
        if (over_key && group_ == 0 && own == 0) {
            float sum = 0.0F;
            for (const float x : memory_.column_sums[0]) {
                sum += x;
            }
            write(head, sum);
        }
        sync_threads(both_groups, 256); // the next item's sums go there
    }

    __device__ __forceinline__ void write(std::int64_t at, float x) const
    {
        offload::write_element(p_.dbias.data, p_.dbias.element, at, x);
    }

    static constexpr int both_groups = 1; ///< hardware barrier

    BiasMemory<Shape>& memory_;
    const Params& p_;
    const int group_;
    const Lane at_;
    BiasTiles<Shape> tiles_;
    BlockLogits<Shape, BiasMemory<Shape>, false> logits_;
    RingPlace<Shape::q_stages> q_;
    RingPlace<Shape::stages> k_;
    bool has_queries_ = false;
    // Of the lane's two rows: statistics, and the keys that they see.
    float lse_[2], delta_[2], residual_[2];
    VisibleColumns keys_;
};

template <class Shape>
__global__ void __launch_bounds__(Shape::threads, 1)
    hopper_bias_kernel(const __grid_constant__ Params p, const __grid_constant__ BackwardMaps maps)
{
    auto& memory = block_memory<BiasMemory<Shape>>();
    if (threadIdx.x == 0) {
        constexpr unsigned readers = 4 * Shape::groups * Lane::speakers;
        for (int i = 0; i < Shape::q_stages; ++i) {
            memory.q_full[i].init(1);
            memory.q_empty[i].init(readers);
        }
        for (int i = 0; i < Shape::stages; ++i) {
            memory.k_full[i].init(1);
            memory.k_empty[i].init(readers);
        }
        memory.bias_barriers.init();
        publish_barriers();
    }
    __syncthreads();
    const int group = warpgroup() - 1;
    if (group < 0) {
        give_registers<40>();
        if (threadIdx.x == 0) {
            bring_bias(memory, p, maps);
        }
    } else {
        take_registers<232>();
        BiasGroup<Shape>(memory, p, maps.bias.is_there, group).run();
    }
}

} // namespace flashomp::cuda
