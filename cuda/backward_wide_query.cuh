// dQ on Hopper for heads deeper than 128, whose dK and dV do not both fit beside their scores in registers, so that
// the one pass of backward_hopper.cuh is not for them: seven products in two passes instead of five, and no sum in
// memory. This is the first, as in offload/algorithm/backward.hpp: a query block stays, keys and values stream past it,
// and ΣP and ΣdS of each row correct LSE and D for the second (backward_wide_key.cuh).
//
// Two warpgroups have 64 query rows each, and share what the copy engine brings. While one computes P and dS, the
// other's products run.
#pragma once

#include "algorithm/row_statistics.hpp"
#include "backward_items.cuh"
#include "tile/block_logits.cuh"
#include "tile/products.cuh"
#include "tile/warpgroup.cuh"

namespace flashomp::cuda {

/// 16-bit type, head_dim and head_dim_v rounded up.
template <class Math_, int depth_, int depth_v_>
struct WideQueryShape {
    using Math = Math_;
    static constexpr int depth = depth_, depth_v = depth_v_, block_m = 128, block_n = 64;
    static constexpr int tile_rows = 64;                                 ///< of a query block in BackwardScratch
    static constexpr int k_stages = 2, v_stages = depth_v > 128 ? 1 : 2; // as there is room for
    static constexpr int groups = 2, threads = 128 * (groups + 1);
    static constexpr bool is_modified = false, is_natural = false;
    static constexpr Softcap softcap = Softcap::absent;
    /// Of a bias, for each group, where there is room for a block of it: beside values of 256 columns there is none.
    static constexpr int bias_queries = depth_v > 128 ? 0 : 64, bias_keys = block_n, bias_bytes = 0;
    static constexpr int bias_parts = groups;
    static constexpr int panels = depth / 64, panels_v = depth_v / 64;
    static constexpr int q_bytes = block_m * panels * 128, dout_bytes = block_m * panels_v * 128;
    static constexpr int k_bytes = block_n * panels * 128, v_bytes = block_n * panels_v * 128;
};

template <class Shape>
struct WideQueryMemory {
    alignas(1024) unsigned char q[Shape::q_bytes];
    alignas(1024) unsigned char dout[Shape::dout_bytes];
    alignas(1024) unsigned char k[Shape::k_stages][Shape::k_bytes];
    alignas(1024) unsigned char v[Shape::v_stages][Shape::v_bytes];
    [[no_unique_address]] BiasBlock<Shape> bias;
    Barrier q_full, q_empty, dout_full, dout_empty;
    Barrier k_full[Shape::k_stages], k_empty[Shape::k_stages];
    Barrier v_full[Shape::v_stages], v_empty[Shape::v_stages];
    [[no_unique_address]] BiasBarriers<Shape> bias_barriers;
    ItemSlots<QueryItem<Shape>> items;
};

/// The copying thread: draws items; brings keys and values, and with the first of them dO and queries.
template <class Shape>
__device__ __forceinline__ void bring_wide_query(WideQueryMemory<Shape>& memory, const Params& p,
                                                 const BackwardMaps& maps, const Schedule& schedule, unsigned* counter)
{
    RingPlace<2> place;
    RingPlace<Shape::k_stages> k;
    RingPlace<Shape::v_stages> v;
    [[maybe_unused]] RingPlace<1> bias;
    unsigned parity = 1; // of places that are empty
    for (;;) {
        const auto* const next =
            memory.items.publish(place, p, schedule, [&] { return draw_item(counter, schedule.items()); });
        if (next == nullptr) {
            return;
        }
        const QueryItem<Shape>& item = *next;
        const auto queries = [&] { return queries_in_map(p, item, item.head).from(item.i0); };
        for (int block = 0; block < item.blocks; ++block) {
            const auto keys = [&] { return keys_in_map(p, item).from(item.keys_begin + block * Shape::block_n); };
            memory.k_empty[k.index].wait(k.parity ^ 1U);
            memory.k_full[k.index].expect(Shape::k_bytes);
            copy_panels<Shape::block_n, Shape::panels>(memory.k[k.index], maps.k, keys(), memory.k_full[k.index]);
            k.advance();
            memory.v_empty[v.index].wait(v.parity ^ 1U);
            memory.v_full[v.index].expect(Shape::v_bytes);
            copy_panels<Shape::block_n, Shape::panels_v>(memory.v[v.index], maps.v, keys(), memory.v_full[v.index]);
            v.advance();
            if constexpr (Shape::bias_bytes > 0) {
                if (maps.bias.is_there) {
                    memory.bias_barriers.template bring<false>(memory.bias, maps.bias, bias,
                                                               maps.bias.queries(item.batch, item.head, item.i0),
                                                               item.keys_begin + block * Shape::block_n);
                }
            }
            if (block == 0) { // their places are emptied in this order
                memory.dout_empty.wait(parity);
                memory.dout_full.expect(Shape::dout_bytes);
                copy_panels<Shape::block_m, Shape::panels_v>(memory.dout, maps.dout, queries(), memory.dout_full);
                memory.q_empty.wait(parity);
                memory.q_full.expect(Shape::q_bytes);
                copy_panels<Shape::block_m, Shape::panels>(memory.q, maps.q, queries(), memory.q_full);
                parity ^= 1U;
            }
        }
    }
}

/// One computing warpgroup: rows [64·group, 64·group + 64) of each query block.
template <class Shape>
class WideQueryGroup {
public:
    __device__ __forceinline__ WideQueryGroup(WideQueryMemory<Shape>& memory, const Params& p,
                                              const BackwardScratch& scratch, bool brings_bias, int group)
        : memory_(memory), p_(p), scratch_(scratch), group_(group), logits_(memory, p, brings_bias, group)
    {
    }

    __device__ __forceinline__ void run()
    {
        memory_.items.for_each(at_, [this](const auto& item) { attend(item); });
    }

private:
    using Math = typename Shape::Math;
    static constexpr int block_m = Shape::block_m, block_n = Shape::block_n;
    static constexpr int scores = block_n / 2, sums = Shape::depth / 2; // registers
    static constexpr bool has_softcap = Shape::softcap == Softcap::alone;
    using Scores = ModifiedScores<Math, Shape::softcap>;

    __device__ __forceinline__ void attend(const QueryItem<Shape>& item)
    {
        float dq[sums];
#pragma unroll
        for (int i = 0; i < sums; ++i) {
            dq[i] = 0.0F;
        }
        const int row = item.i0 + 64 * group_ + at_.row();
        const std::int64_t rows = tile_of(p_, scratch_, item.batch, item.head, 0) * Shape::tile_rows;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int i = row + 8 * half;
            const bool is_there = i < item.band.q_len;
            lse_[half] = is_there ? scratch_.lse[rows + i] : infinity;
            delta_[half] = is_there ? scratch_.delta[rows + i] : 0.0F;
            sum_[half] = shift_[half] = 0.0F;
        }
        keys_.set_keys(item.band, row);
        if (item.blocks > 0) {
            stream(item, row, dq);
        }
        finish(item, row, rows, dq);
    }

    __device__ __forceinline__ void stream(const QueryItem<Shape>& item, int row, float (&dq)[sums])
    {
        float s[scores], dp[scores];
        const std::uint8_t* const padding = padding_of(p_, item.batch);
        const Range interior = item.interior;
        const int k_len = item.band.k_len;
        const int blocks = item.blocks;
        int j0 = item.keys_begin;
        memory_.q_full.wait(parity_);
        memory_.dout_full.wait(parity_);
        parity_ ^= 1U;
#pragma unroll 1
        for (int block = 0; block < blocks; ++block, j0 += block_n) {
            memory_.k_full[k_.index].wait(k_.parity);
            if (p_.k.is_packed && j0 + block_n > k_len) { // 0 times what is not a number would be none
                memory_.v_full[v_.index].wait(v_.parity);
                clear_rows<block_n, Shape::panels>(memory_.k[k_.index], k_len - j0, own_threads());
                clear_rows<block_n, Shape::panels_v>(memory_.v[v_.index], k_len - j0, own_threads());
            }
            fence_products();
            issue_scores<Math, block_m, Shape::depth>(s, memory_.q, 64 * group_, memory_.k[k_.index]);
            commit_products();
            memory_.v_full[v_.index].wait(v_.parity);
            fence_products();
            issue_scores<Math, block_m, Shape::depth_v>(dp, memory_.dout, 64 * group_, memory_.v[v_.index]);
            commit_products();
            logits_.draw(item, item.head, row, j0 + at_.column());
            wait_products<1>();
            pin(s);
            logits_.make(s, item, item.head, row, j0 + at_.column(), j0 < interior.begin || j0 + block_n > interior.end,
                         [&] {
                             keys_.hide(s, j0 + at_.column());
                             if (padding != nullptr) {
                                 hide_padding(s, j0 + at_.column(), k_len, padding);
                             }
                         });
            probabilities(s);
            wait_products<0>();
            pin(dp);
            at_.release(memory_.v_empty[v_.index]);
            v_.advance();
            gradients(dp, s);
            std::uint32_t ds[block_n / 16][4];
            round<Math>(dp, ds);
            fence_products();
            issue_sums<Math>(dq, ds, memory_.k[k_.index]);
            commit_products();
            wait_products<0>();
            at_.release(memory_.k_empty[k_.index]);
            k_.advance();
        }
        pin(dq);
        at_.release(memory_.dout_empty);
    }

    /// p = 2^(s - lse), and its sums. With a softcap gradients() does that: for p and slope there are no registers.
    __device__ __forceinline__ void probabilities(float (&s)[scores])
    {
        if constexpr (!has_softcap) {
#pragma unroll
            for (int i = 0; i < scores; ++i) {
                const int half = i / 2 % 2;
                s[i] = probability(s[i], half);
                sum_[half] += s[i];
            }
            compute_now(sum_[0] + sum_[1]);
        }
    }
    __device__ __forceinline__ float probability(float x, int half) const
    {
        if constexpr (Shape::is_modified) {
            return ptx::exp2_approx(LogitExponent<Shape>{Scores::unit(p_)}(x, lse_[half]));
        } else {
            return ptx::exp2_approx(__builtin_fmaf(x, p_.scale * log2_e, -lse_[half]));
        }
    }

    /// ds = p∘(dp - D), in dp's place, and its sums. dp is that of the probabilities behind dropout; the slope of a
    /// softcap is no part of what repairs D.
    __device__ __forceinline__ void gradients(float (&dp)[scores], const float (&s)[scores])
    {
        const float inverse = has_softcap ? offload::quotient(p_.scale, p_.softcap) : 0.0F;
#pragma unroll
        for (int i = 0; i < scores; ++i) {
            const int half = i / 2 % 2;
            const float p = has_softcap ? probability(s[i], half) : s[i];
            if constexpr (Shape::is_modified) {
                dp[i] = p * __builtin_fmaf(logits_.kept().of(dp[i], i), p_.dropout_scale, -delta_[half]);
            } else {
                dp[i] = p * (dp[i] - delta_[half]);
            }
            shift_[half] += dp[i];
            if constexpr (has_softcap) {
                sum_[half] += p;
                dp[i] *= Scores::slope_at(s[i], inverse);
            }
        }
    }

    /// dq; and LSE and D, corrected as in offload/algorithm/row_repair.hpp.
    __device__ __forceinline__ void finish(const QueryItem<Shape>& item, int row, std::int64_t rows, float (&dq)[sums])
    {
        const bool has_sink = p_.sink.data != nullptr;
        const float sink = has_sink ? p_.sink.data[item.head] * (Shape::is_natural ? 1.0F : log2_e) : 0.0F;
        float by[2];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const float keys_p = row_sum(sum_[half]);
            const float shift = row_sum(shift_[half]);
            const float beyond = (sink - lse_[half]) * (Shape::is_natural ? log2_e : 1.0F);
            const float sink_p = has_sink ? ptx::exp2_approx(beyond) : 0.0F; // belongs to the row's sum
            const float all_p = keys_p + sink_p;
            const float residual = offload::row_residual(all_p);
            const float delta = offload::corrected_delta(shift, delta_[half], keys_p, all_p);
            by[half] = offload::gradient_factor(p_.scale, all_p);
            const int i = row + 8 * half;
            if (at_.lane % 4 == 0 && i < item.band.q_len) {
                if constexpr (Shape::is_natural) {
                    scratch_.residual[rows + i] = residual;
                } else {
                    scratch_.lse[rows + i] = lse_[half] + residual;
                }
                scratch_.delta[rows + i] = delta;
                if (p_.delta.data != nullptr) { // for the gradients of a sink and a bias
                    offload::row_stats(p_.delta, item.batch, item.head, item.q_start)[i] = delta;
                    offload::row_stats(p_.residual, item.batch, item.head, item.q_start)[i] = residual;
                }
            }
        }
        const int in_block = group_ * 64 + static_cast<int>(at_.warp) * 16;
        const int first = item.i0 + in_block;
        auto* const target = static_cast<std::uint16_t*>(p_.dq.data) + item.batch * p_.dq.batch +
                             item.head * p_.dq.head + (item.q_start + first) * p_.dq.row;
        const int count = item.band.q_len - first;
        if (item.blocks == 0) { // q's place is somebody else's
            store_zeros(target, p_.dq.row, count, p_.head_dim);
            return;
        }
        store_rows<Math, block_m>(dq, by[0], by[1], shared_address(memory_.q) + in_block * 128, target, p_.dq.row,
                                  count, p_.head_dim, p_.nonfinite);
        publish_shared();
        __syncwarp();
        at_.release(memory_.q_empty);
    }

    /// Hardware barrier of this group alone.
    __device__ __forceinline__ int own_threads() const
    {
        return 1 + group_;
    }

    WideQueryMemory<Shape>& memory_;
    const Params& p_;
    const BackwardScratch& scratch_;
    const int group_;
    const Lane at_;
    RingPlace<Shape::k_stages> k_;
    RingPlace<Shape::v_stages> v_;
    unsigned parity_ = 0;
    // Of the lane's two rows: statistics, sums of P and of dS, and the keys that they see.
    float lse_[2], delta_[2], sum_[2], shift_[2];
    VisibleColumns keys_;
    [[no_unique_address]] BlockLogits<Shape, WideQueryMemory<Shape>, false> logits_;
};

template <class Shape>
__global__ void __launch_bounds__(Shape::threads, 1)
    wide_query_kernel(const __grid_constant__ Params p, const __grid_constant__ BackwardMaps maps,
                      const __grid_constant__ Schedule schedule, const __grid_constant__ BackwardScratch scratch)
{
    auto& memory = block_memory<WideQueryMemory<Shape>>();
    if (threadIdx.x == 0) {
        constexpr unsigned readers = 4 * Shape::groups * Lane::speakers;
        memory.q_full.init(1);
        memory.q_empty.init(readers);
        memory.dout_full.init(1);
        memory.dout_empty.init(readers);
        for (int i = 0; i < Shape::k_stages; ++i) {
            memory.k_full[i].init(1);
            memory.k_empty[i].init(readers);
        }
        for (int i = 0; i < Shape::v_stages; ++i) {
            memory.v_full[i].init(1);
            memory.v_empty[i].init(readers);
        }
        if constexpr (Shape::bias_bytes > 0) {
            memory.bias_barriers.init();
        }
        memory.items.init(readers);
        publish_barriers();
    }
    __syncthreads();
    const int group = warpgroup() - 1;
    if (group < 0) {
        give_registers<24>();
        if (threadIdx.x == 0) {
            bring_wide_query(memory, p, maps, schedule, scratch.counters);
        }
    } else {
        take_registers<240>();
        WideQueryGroup<Shape>(memory, p, scratch, maps.bias.is_there, group).run();
    }
}

} // namespace flashomp::cuda
