// dK and dV on Hopper for heads deeper than 128: the second of the two passes that backward_wide_query.cuh begins. A
// key block stays, the query blocks of all heads of its group stream past it.
//
// One accumulator is all that a warpgroup has registers for, so that the two share a block of 64 keys by what they
// compute: one P and dV, the other dS and dK. P crosses over through shared memory, in float32: of modified scores
// times the slope of a softcap, and with the sign of what dropout drops. Each issues its next scores behind its sum,
// and computes with the last while the other's products run.
#pragma once

#include "backward_wide_key_blocks.cuh"
#include "tile/block_logits.cuh"
#include "tile/products.cuh"
#include "tile/warpgroup.cuh"

namespace flashomp::cuda {

/// What both computing warpgroups do.
template <class Shape>
class WideKeyGroup {
public:
    __device__ __forceinline__ WideKeyGroup(WideKeyMemory<Shape>& memory, const Params& p) : memory_(memory), p_(p) {}

protected:
    using Math = typename Shape::Math;
    static constexpr int block_m = Shape::block_m, block_n = Shape::block_n;
    static constexpr int scores = block_m / 2; // registers
    using Scores = float[scores];
    using Operand = std::uint32_t[block_m / 16][4];

    /// Waits for a query block's rows. 0 times what is not a number, and another sequence's, would be none.
    template <int panels>
    __device__ __forceinline__ void wait_rows(Barrier& full, unsigned parity, unsigned char* rows, int i0, int q_len,
                                              int own_threads) const
    {
        full.wait(parity);
        if (p_.q.is_packed && i0 + block_m > q_len) {
            clear_rows<block_m, panels>(rows, q_len - i0, own_threads);
        }
    }

    /// Of a query block, q's rows or dO's: waits for them; and is done with them.
    __device__ __forceinline__ const unsigned char* wait_q(int i0, int q_len, int own_threads) const
    {
        wait_rows<Shape::panels>(memory_.q_full[q_.index], q_.parity, memory_.q[q_.index], i0, q_len, own_threads);
        return memory_.q[q_.index];
    }
    __device__ __forceinline__ const unsigned char* wait_dout(int i0, int q_len, int own_threads) const
    {
        wait_rows<Shape::panels_v>(memory_.dout_full[dout_.index], dout_.parity, memory_.dout[dout_.index], i0, q_len,
                                   own_threads);
        return memory_.dout[dout_.index];
    }
    __device__ __forceinline__ void release_q()
    {
        at_.release(memory_.q_empty[q_.index]);
        q_.advance();
    }
    __device__ __forceinline__ void release_dout()
    {
        at_.release(memory_.dout_empty[dout_.index]);
        dout_.advance();
    }

    /// What both groups do with the query blocks of an item: sum += operand·rows. multiply(s, rows) issues scores, of
    /// which compute(s, rows) makes the operand. wait(i0) returns the rows, release() is done with them. The next
    /// scores are issued behind each sum.
    template <int sums, class Multiply, class Compute, class Wait, class Release>
    __device__ __forceinline__ void stream(const BackwardItem<Shape>& item, Barrier& resident_full, float (&sum)[sums],
                                           const Multiply& multiply, const Compute& compute, const Wait& wait,
                                           const Release& release)
    {
        Scores s;
        Operand operand;
        QueryRows<Shape> rows(item);
        const int steps = item.steps();
        const auto issue_sum = [&] {
            const unsigned char* const summed = wait(rows.i0);
            fence_products();
            issue_sums<Math>(sum, operand, summed);
            commit_products();
        };
        const auto finish_scores = [&] {
            wait_products<0>();
            pin(s);
            compute(s, rows);
            round<Math>(s, operand);
        };
        resident_full.wait(parity_);
        parity_ ^= 1U;
        multiply(s, rows);
        finish_scores();
#pragma unroll 1
        for (int step = 1; step < steps; ++step) {
            issue_sum();
            rows.advance();
            multiply(s, rows);
            wait_products<1>();
            release();
            finish_scores();
        }
        issue_sum();
        wait_products<0>();
        pin(sum);
        release();
    }

    /// dk or dv, by way of the place of what this group alone has read, to memory.
    template <int sums>
    __device__ __forceinline__ void store(const float (&sum)[sums], float by, const offload::Tensor& tensor, int width,
                                          unsigned char* shared, Barrier& empty, const BackwardItem<Shape>& item) const
    {
        const int row = 16 * static_cast<int>(at_.warp);
        const int j = item.j0 + row;
        auto* const target = static_cast<std::uint16_t*>(tensor.data) + item.batch * tensor.batch +
                             item.head_kv * tensor.head + (item.k_start + j) * tensor.row;
        const int count = item.band.k_len - j;
        if (item.steps() == 0) { // the place may be another item's
            store_zeros(target, tensor.row, count, width);
            return;
        }
        store_rows<Math, block_n>(sum, by, by, shared_address(shared) + row * 128, target, tensor.row, count, width,
                                  p_.nonfinite);
        publish_shared();
        __syncwarp();
        at_.release(empty);
    }

    WideKeyMemory<Shape>& memory_;
    const Params& p_;
    const Lane at_;
    RingPlace<Shape::stages> q_, dout_;
    unsigned parity_ = 0, p_parity_ = 0;
};

/// P, which it hands over, and dV.
template <class Shape>
class WideValueSums : WideKeyGroup<Shape> {
public:
    __device__ __forceinline__ WideValueSums(WideKeyMemory<Shape>& memory, const Params& p, bool brings_bias)
        : WideKeyGroup<Shape>(memory, p), logits_(memory, p, brings_bias, 0)
    {
    }

    __device__ __forceinline__ void run()
    {
        memory_.items.for_each(at_, [this](const auto& item) { attend(item); });
    }

private:
    using Base = WideKeyGroup<Shape>;
    using Base::at_, Base::block_m, Base::block_n, Base::dout_, Base::memory_, Base::p_, Base::p_parity_, Base::parity_,
        Base::q_, Base::scores;
    using typename Base::Math, typename Base::Scores;
    static constexpr int sums = Shape::depth_v / 2; // registers
    static constexpr int own_threads = 1;           // hardware barrier of this group alone

    __device__ __forceinline__ void attend(const BackwardItem<Shape>& item)
    {
        float dv[sums];
#pragma unroll
        for (int i = 0; i < sums; ++i) {
            dv[i] = 0.0F;
        }
        if (item.steps() > 0) {
            see(item);
            const int q_len = item.band.q_len;
            this->stream(
                item, memory_.k_full, dv,
                [&](Scores& s, const QueryRows<Shape>& rows) {
                    memory_.q_full[q_.index].wait(q_.parity); // hidden rows are -inf in s, whatever they are here
                    fence_products();
                    issue_scores<Math, block_n, Shape::depth>(s, memory_.k, 0, memory_.q[q_.index]);
                    commit_products();
                    logits_.draw(item, item.head_kv * item.group + rows.head, item.j0 + at_.row(),
                                 rows.i0 + at_.column());
                },
                [&](Scores& s, const QueryRows<Shape>& rows) { probabilities(s, item, rows.head, rows.i0); },
                [&](int i0) { return this->wait_dout(i0, q_len, own_threads); }, [&] { this->release_dout(); });
        }
        this->store(dv, Shape::is_modified ? p_.dropout_scale : 1.0F, p_.dv, p_.head_dim_v, memory_.k, memory_.k_empty,
                    item);
    }

    /// Which queries see the lane's two keys. What a key's row of a product is does not matter to the others' rows, so
    /// that what lies beyond the last key may be anything.
    __device__ __forceinline__ void see(const BackwardItem<Shape>& item)
    {
        const std::uint8_t* const padding = padding_of(p_, item.batch);
        queries_.set_queries(item.band, item.j0 + at_.row(), padding);
        const bool is_whole = item.j0 + block_n <= item.band.k_len && padding == nullptr;
        interior_ = is_whole ? item.band.interior_queries(item.j0, item.j0 + block_n) : Range{};
    }

    /// p = 2^(s - lse), 0 where a mask hides the key; also to the other group.
    __device__ __forceinline__ void probabilities(Scores& s, const BackwardItem<Shape>& item, int head, int i0)
    {
        const bool hides = i0 < interior_.begin || i0 + block_m > interior_.end;
        const auto hide = [&] { queries_.hide(s, i0 + at_.column()); };
        logits_.make(s, item, item.head_kv * item.group + head, item.j0 + at_.row(), i0 + at_.column(), hides, hide);
        const float factor = p_.scale * log2_e;
        const float2* const lse = reinterpret_cast<const float2*>(memory_.lse[q_.index]) + at_.lane % 4;
        float4* const target = memory_.p + threadIdx.x % 128;
        memory_.p_empty.wait(p_parity_ ^ 1U);
        p_parity_ ^= 1U;
#pragma unroll
        for (int i = 0; i < scores; i += 4) {
            if constexpr (Shape::is_modified) {
                float2 residual{};
                if constexpr (Shape::is_natural) {
                    residual = reinterpret_cast<const float2*>(memory_.residual.stage[q_.index])[at_.lane % 4 + i];
                }
                target[32 * i] = logits_.exponentials(s, i, lse[i], residual);
            } else {
                exponentials(s + i, factor, lse[i]);
                target[32 * i] = make_float4(s[i], s[i + 1], s[i + 2], s[i + 3]);
            }
        }
        __syncwarp();
        at_.release(memory_.p_full);
        this->release_q();
    }

    // Of the lane's two keys: the queries that see them; and those that see all keys of the block.
    VisibleColumns queries_;
    Range interior_;
    [[no_unique_address]] BlockLogits<Shape, WideKeyMemory<Shape>, true> logits_;
};

/// dS, with the other group's P, and dK.
template <class Shape>
class WideKeySums : WideKeyGroup<Shape> {
public:
    using WideKeyGroup<Shape>::WideKeyGroup;

    __device__ __forceinline__ void run()
    {
        memory_.items.for_each(at_, [this](const auto& item) { attend(item); });
    }

private:
    using Base = WideKeyGroup<Shape>;
    using Base::at_, Base::block_n, Base::dout_, Base::memory_, Base::p_, Base::p_parity_, Base::parity_, Base::q_,
        Base::scores;
    using typename Base::Math, typename Base::Scores;
    static constexpr int sums = Shape::depth / 2; // registers
    static constexpr int own_threads = 2;         // hardware barrier of this group alone

    __device__ __forceinline__ void attend(const BackwardItem<Shape>& item)
    {
        float dk[sums];
#pragma unroll
        for (int i = 0; i < sums; ++i) {
            dk[i] = 0.0F;
        }
        if (item.steps() > 0) {
            const int q_len = item.band.q_len;
            this->stream(
                item, memory_.v_full, dk,
                [&](Scores& dp, const QueryRows<Shape>& rows) {
                    const unsigned char* const dout = this->wait_dout(rows.i0, q_len, own_threads);
                    fence_products();
                    issue_scores<Math, block_n, Shape::depth_v>(dp, memory_.v, 0, dout);
                    commit_products();
                },
                [&](Scores& dp, const QueryRows<Shape>&) { gradients(dp); },
                [&](int i0) { return this->wait_q(i0, q_len, own_threads); }, [&] { this->release_q(); });
        }
        this->store(dk, p_.scale, p_.dk, p_.head_dim, memory_.v, memory_.v_empty, item);
    }

    /// ds = p∘(dp - D)
    __device__ __forceinline__ void gradients(Scores& dp)
    {
        const float2* const delta = reinterpret_cast<const float2*>(memory_.delta[dout_.index]) + at_.lane % 4;
        const float4* const source = memory_.p + threadIdx.x % 128;
        memory_.p_full.wait(p_parity_);
        p_parity_ ^= 1U;
#pragma unroll
        for (int i = 0; i < scores; i += 4) {
            if constexpr (Shape::is_modified) {
                kept_gradients(dp + i, source[32 * i], delta[i], p_.dropout_scale);
            } else {
                score_gradients(dp + i, source[32 * i], delta[i]);
            }
        }
        __syncwarp();
        at_.release(memory_.p_empty);
        this->release_dout();
    }
};

template <class Shape>
__global__ void __launch_bounds__(Shape::threads, 1)
    wide_key_kernel(const __grid_constant__ Params p, const __grid_constant__ BackwardMaps maps,
                    const __grid_constant__ Schedule schedule, const __grid_constant__ BackwardScratch scratch)
{
    auto& memory = block_memory<WideKeyMemory<Shape>>();
    if (threadIdx.x == 0) {
        constexpr unsigned readers = 4 * Lane::speakers; // of a group
        memory.k_full.init(1);
        memory.k_empty.init(readers);
        memory.v_full.init(1);
        memory.v_empty.init(readers);
        memory.p_full.init(readers);
        memory.p_empty.init(readers);
        for (int i = 0; i < Shape::stages; ++i) {
            memory.q_full[i].init(1);
            memory.q_empty[i].init(Shape::groups * readers);
            memory.dout_full[i].init(1);
            memory.dout_empty[i].init(Shape::groups * readers);
        }
        if constexpr (Shape::bias_bytes > 0) {
            memory.bias_barriers.init();
        }
        memory.items.init(Shape::groups * readers);
        publish_barriers();
    }
    __syncthreads();
    const int group = warpgroup();
    if (group == 0) {
        give_registers<24>();
        if (threadIdx.x == 0) {
            bring_wide_key(memory, p, maps, schedule, scratch);
        }
    } else if (group == 1) {
        take_registers<240>();
        WideValueSums<Shape>(memory, p, maps.bias.is_there).run();
    } else {
        take_registers<240>();
        WideKeySums<Shape>(memory, p).run();
    }
}

} // namespace flashomp::cuda
