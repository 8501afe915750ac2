// The backward pass on Hopper (FlashAttention-3, section 3.1 and appendix B): P is recomputed from LSE, and each of the
// five products is done once. A key block stays, query blocks stream past it; dK and dV stay in registers, and what a
// block adds to dQ goes, by the copy engine, to a float32 sum in memory.
//
// Two warpgroups have 64 keys each. Their scores are transposed, keys along the rows, so that P and dS are left
// operands of dV += PᵀdO and dK += dSᵀQ right where they are computed; for dQ = dS·K, which sums over the keys of both,
// dS also goes to shared memory.
//
// The sums of dQ have a fixed order, so that the same inputs give the same bits: for each query block a number in
// memory says whose turn it is. That nobody need wait, key blocks begin at different query blocks, which without masks
// is arranged (Schedule::rotates; all key blocks of a head are then at work at once) and under a causal mask is so
// anyway.
#pragma once

#include "backward_items.cuh"
#include "tile/block_logits.cuh"
#include "tile/products.cuh"
#include "tile/warpgroup.cuh"

namespace flashomp::cuda {

/// 16-bit type, head_dim and head_dim_v rounded up, and queries of a block.
template <class Math_, int depth_, int block_m_>
struct BackwardShape {
    using Math = Math_;
    static constexpr int depth = depth_, block_m = block_m_, block_n = 128;
    static constexpr int groups = 2, stages = 2, threads = 128 * (groups + 1);
    static constexpr bool is_modified = false, is_natural = false, repairs_lse = false;
    using Plain = BackwardShape; ///< of a Modified shape
    static constexpr Softcap softcap = Softcap::absent;
    /// Of a bias, for each group, where there is room for a block of it: at depth 64 it is twice as large.
    static constexpr int bias_queries = depth == 64 ? 0 : block_m, bias_keys = 64, bias_bytes = 0;
    static constexpr int bias_parts = groups;
    static constexpr int panels = depth / 64, query_panels = block_m / 64;
    static constexpr int kv_bytes = block_n * panels * 128;
    static constexpr int q_bytes = block_m * panels * 128;
    static constexpr int ds_bytes = query_panels * block_n * 128;
    static constexpr int dq_floats = block_m * depth;
    static_assert(dq_floats == groups * 64 * 64); // a 64x64 part for each warpgroup
    static constexpr int senders = 2;             // threads that take turns to send what steps add to dQ
    /// Whether a sender waits for its turn while the sum is still computed. At depth 64, where turns come late, asking
    /// memory again and again takes longer than it saves (docs/log/cuda-history.md).
    static constexpr bool asks_early = depth == 128;
};

template <class Shape>
struct BackwardMemory {
    alignas(1024) unsigned char k[Shape::kv_bytes];
    alignas(1024) unsigned char v[Shape::kv_bytes];
    alignas(1024) unsigned char q[Shape::stages][Shape::q_bytes];
    alignas(1024) unsigned char dout[Shape::stages][Shape::q_bytes];
    alignas(1024) unsigned char ds[2][Shape::ds_bytes];
    alignas(1024) float dq[Shape::dq_floats];
    [[no_unique_address]] BiasBlock<Shape> bias;
    alignas(128) float lse[Shape::stages][Shape::block_m];
    alignas(128) float delta[Shape::stages][Shape::block_m];
    Barrier kv_full, kv_empty, dq_full[Shape::senders], dq_empty;
    Barrier q_full[Shape::stages], q_empty[Shape::stages];
    Barrier dout_full[Shape::stages], dout_empty[Shape::stages];
    [[no_unique_address]] BiasBarriers<Shape> bias_barriers;
    ItemSlots<BackwardItem<Shape>> items;
};

/// The copying thread: draws items; brings keys and values, then queries, their statistics, and dO.
template <class Shape>
__device__ __forceinline__ void bring_backward(BackwardMemory<Shape>& memory, const Params& p, const BackwardMaps& maps,
                                               const Schedule& schedule, const BackwardScratch& scratch)
{
    RingPlace<2> place;
    RingPlace<Shape::stages> at;
    [[maybe_unused]] RingPlace<1> bias;
    unsigned kv_parity = 1;
    for (;;) {
        const auto* const next =
            memory.items.publish(place, p, schedule, [&] { return draw_item(scratch.counters, schedule.items()); });
        if (next == nullptr) {
            return;
        }
        const BackwardItem<Shape>& item = *next;
        const int steps = item.steps();
        memory.kv_empty.wait(kv_parity);
        kv_parity ^= 1U;
        if (steps == 0) {
            memory.kv_full.arrive();
            continue;
        }
        memory.kv_full.expect(2 * Shape::kv_bytes);
        const MapRows keys = keys_in_map(p, item).from(item.j0);
        copy_panels<Shape::block_n, Shape::panels>(memory.k, maps.k, keys, memory.kv_full);
        copy_panels<Shape::block_n, Shape::panels>(memory.v, maps.v, keys, memory.kv_full);
        for (int step = 0; step < steps; ++step) {
            const int head = item.head(step);
            const int block = item.block(step);
            const std::int64_t rows = tile_of(p, scratch, item.batch, head, block) * Shape::block_m;
            constexpr unsigned statistics = 4 * Shape::block_m;
            Barrier& q_full = memory.q_full[at.index];
            memory.q_empty[at.index].wait(at.parity ^ 1U);
            q_full.expect(Shape::q_bytes + 2 * statistics);
            const MapRows queries = queries_in_map(p, item, head).from(block * Shape::block_m);
            copy_panels<Shape::block_m, Shape::panels>(memory.q[at.index], maps.q, queries, q_full);
            copy_bulk(memory.lse[at.index], scratch.lse + rows, statistics, q_full);
            copy_bulk(memory.delta[at.index], scratch.delta + rows, statistics, q_full);
            Barrier& dout_full = memory.dout_full[at.index];
            memory.dout_empty[at.index].wait(at.parity ^ 1U);
            dout_full.expect(Shape::q_bytes);
            copy_panels<Shape::block_m, Shape::panels>(memory.dout[at.index], maps.dout, queries, dout_full);
            if constexpr (Shape::bias_bytes > 0) {
                if (maps.bias.is_there) {
                    const MapRows of = maps.bias.queries(item.batch, head, block * Shape::block_m);
                    memory.bias_barriers.template bring<true>(memory.bias, maps.bias, bias, of, item.j0);
                }
            }
            at.advance();
        }
    }
}

/// A thread that sends what is added to dQ, each query block's in the order of the items. The first to come stores it,
/// so that nobody needs to clear the sum. Until a sum has arrived and the next block has been told, a step may pass: so
/// senders take turns, and one waits for that while another sends.
template <class Shape>
__device__ __forceinline__ void send_dq(BackwardMemory<Shape>& memory, const Params& p, const Schedule& schedule,
                                        const BackwardScratch& scratch, int sender)
{
    unsigned parity = 0;
    const auto wait_for_sum = [&] {
        memory.dq_full[sender].wait(parity);
        parity ^= 1U;
    };
    int step = sender; // of the item
    for (RingPlace<2> place;; place.advance()) {
        memory.items.full[place.index].wait(place.parity);
        const BackwardItem<Shape>& item = memory.items.item[place.index];
        if (item.j0 < 0) {
            return;
        }
        for (; step < item.steps(); step += Shape::senders) {
            const int block = item.block(step);
            const std::int64_t tile = tile_of(p, scratch, item.batch, item.head(step), block);
            const Range adding = key_blocks<Shape>(item.band, block);
            const int turn = item.turn(schedule, adding, block);
            const bool is_last = turn + 1 == adding.end - adding.begin;
            int* const turns = scratch.turns + tile;
            if constexpr (!Shape::asks_early) {
                wait_for_sum();
            }
            while (load_acquire(turns) != turn) {
            }
            publish_global();
            if constexpr (Shape::asks_early) {
                wait_for_sum();
            }
            float* const sum = scratch.dq + tile * Shape::dq_floats;
            constexpr unsigned bytes = sizeof(float) * Shape::dq_floats;
            if (turn == 0) {
                send_bulk(sum, memory.dq, bytes);
            } else {
                add_bulk(sum, memory.dq, bytes);
            }
            commit_bulk();
            wait_bulk_read();
            memory.dq_empty.arrive();
            wait_bulk(); // which is a fence, too: this thread sees what arrived, and may tell of it
            store_release(turns, is_last ? 0 : turn + 1);
        }
        step -= item.steps();
        memory.items.empty[place.index].arrive();
    }
}

/// One computing warpgroup: keys [64·group, 64·group + 64) of each key block.
template <class Shape>
class BackwardGroup {
public:
    __device__ __forceinline__ BackwardGroup(BackwardMemory<Shape>& memory, const Params& p, bool brings_bias,
                                             int group)
        : memory_(memory), p_(p), group_(group), logits_(memory, p, brings_bias, group)
    {
    }

    __device__ __forceinline__ void run(const Schedule& schedule)
    {
        memory_.items.for_each(at_, [this](const auto& item) { attend(item); });
    }

private:
    using Math = typename Shape::Math;
    static constexpr int block_m = Shape::block_m, block_n = Shape::block_n, depth = Shape::depth;
    static constexpr int scores = block_m / 2, sums = depth / 2; // registers
    using Scores = ModifiedScores<Math, Shape::softcap>;

    __device__ __forceinline__ void attend(const BackwardItem<Shape>& item)
    {
        float dk[sums], dv[sums];
#pragma unroll
        for (int i = 0; i < sums; ++i) {
            dk[i] = dv[i] = 0.0F;
        }
        memory_.kv_full.wait(kv_parity_);
        kv_parity_ ^= 1U;
        if (item.steps() > 0) {
            // 0 times what is not a number, and another sequence's, would be none.
            if (p_.k.is_packed && item.j0 + block_n > item.band.k_len) {
                clear_rows<block_n, Shape::panels>(memory_.k, item.band.k_len - item.j0, own_threads());
                clear_rows<block_n, Shape::panels>(memory_.v, item.band.k_len - item.j0, own_threads());
            }
            stream(item, dk, dv);
        }
        sync_threads(all_keys, 256); // the other group has read k, too
        store(dk, p_.scale, p_.dk, p_.head_dim, memory_.k, item);
        store(dv, Shape::is_modified ? p_.dropout_scale : 1.0F, p_.dv, p_.head_dim_v, memory_.v, item);
        publish_shared();
        __syncwarp();
        at_.release(memory_.kv_empty);
    }

    __device__ __forceinline__ void stream(const BackwardItem<Shape>& item, float (&dk)[sums], float (&dv)[sums])
    {
        float s[scores], dp[scores];
        const float factor = p_.scale * log2_e;
        const std::uint8_t* const padding = padding_of(p_, item.batch);
        const int row = item.j0 + 64 * group_ + at_.row();
        VisibleColumns queries; // that see each of the lane's two keys
        queries.set_queries(item.band, row, padding);
        const bool is_whole = item.j0 + block_n <= item.band.k_len && padding == nullptr;
        const Range interior = is_whole ? item.band.interior_queries(item.j0, item.j0 + block_n) : Range{};

        const int steps = item.steps();
        const int i_begin = item.first * block_m, i_end = i_begin + item.blocks * block_m;
        int i0 = i_begin + item.start * block_m;
        const auto clear_rest = [&](unsigned char* rows, int first) { // another sequence's
            if (p_.q.is_packed && first + block_m > item.band.q_len) {
                clear_rows<block_m, Shape::panels>(rows, item.band.q_len - first, own_threads());
            }
        };
        memory_.q_full[q_.index].wait(q_.parity);
        clear_rest(memory_.q[q_.index], i0);
        fence_products();
        issue_scores<Math, block_n, depth>(s, memory_.k, 64 * group_, memory_.q[q_.index]);
        commit_products();
        wait_products<0>();
        pin(s);
#pragma unroll 1
        for (int step = 0; step < steps; ++step) {
            const int stage = q_.index;
            memory_.dout_full[stage].wait(q_.parity);
            clear_rest(memory_.dout[stage], i0);
            fence_products();
            issue_scores<Math, block_n, depth>(dp, memory_.v, 64 * group_, memory_.dout[stage]);
            commit_products();
            std::uint32_t p[block_m / 16][4];
            if constexpr (Shape::is_modified) {
                modified_probabilities(s, p, item, item.head(step), memory_.lse[stage], row, i0, interior, queries);
            } else {
                probabilities(s, memory_.lse[stage], factor, i0, interior, queries);
                round<Math>(s, p);
            }
            wait_products<0>();
            pin(dp);
            const float2* const delta = reinterpret_cast<const float2*>(memory_.delta[stage]) + at_.lane % 4;
#pragma unroll
            for (int i = 0; i < scores; i += 4) {
                if constexpr (Shape::is_modified) { // dP is that of the probabilities behind dropout
#pragma unroll
                    for (int n = i; n < i + 4; ++n) {
                        const float d = n % 2 == 0 ? delta[i].x : delta[i].y;
                        dp[n] = s[n] * __builtin_fmaf(logits_.kept().of(dp[n], n), p_.dropout_scale, -d);
                    }
                } else {
                    score_gradients(dp + i, make_float4(s[i], s[i + 1], s[i + 2], s[i + 3]), delta[i]);
                }
            }
            std::uint32_t ds[block_m / 16][4];
            round<Math>(dp, ds);
            fence_products();
            issue_sums<Math>(dv, p, memory_.dout[stage]);
            commit_products();
            unsigned char* const shared_ds = memory_.ds[ds_buffer_];
            ds_buffer_ ^= 1;
            share(ds, shared_ds);
            publish_shared();
            wait_products<0>(); // dv: no registers for its left operand beside what follows
            at_.release(memory_.dout_empty[stage]);
            sync_threads(all_keys, 256);
            float dq[32];
            fence_products();
            issue_dq(dq, shared_ds);
            commit_products();
            fence_products();
            issue_sums<Math>(dk, ds, memory_.q[stage]);
            commit_products();
            wait_products<1>();
            pin(dq);
            hand_over(dq);
            // The next scores. After the last step they are of no use, but a product that is not always issued would
            // have the compiler wait for each.
            RingPlace<Shape::stages> next = q_;
            next.advance();
            const bool is_last = step + 1 == steps;
            const int i_next = i0 + block_m == i_end ? i_begin : i0 + block_m;
            if (!is_last) {
                memory_.q_full[next.index].wait(next.parity);
                clear_rest(memory_.q[next.index], i_next);
            }
            fence_products();
            issue_scores<Math, block_n, depth>(s, memory_.k, 64 * group_, memory_.q[is_last ? stage : next.index]);
            commit_products();
            wait_products<0>(); // dk and the next s
            pin(s);
            at_.release(memory_.q_empty[stage]);
            q_ = next;
            i0 = i_next;
        }
        wait_products<0>();
        pin(dk);
        pin(dv);
    }

    /// What the step adds to dq, to the thread that sends it.
    __device__ __forceinline__ void hand_over(const float (&dq)[32])
    {
        memory_.dq_empty.wait(dq_parity_ ^ 1U);
        dq_parity_ ^= 1U;
        auto* const target = reinterpret_cast<float4*>(memory_.dq) + group_ * 1024 + threadIdx.x % 128;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            target[128 * i] = make_float4(dq[4 * i], dq[4 * i + 1], dq[4 * i + 2], dq[4 * i + 3]);
        }
        publish_shared();
        __syncwarp();
        at_.release(memory_.dq_full[sender_]);
        sender_ = (sender_ + 1) % Shape::senders;
    }

    /// A 64x64 part of dq = ds·k: of 64 queries, this group's half of the columns; of 128, its half of the rows.
    __device__ __forceinline__ void issue_dq(float (&dq)[32], const unsigned char* ds)
    {
        constexpr bool halves_columns = Shape::query_panels == 1;
        const std::uint32_t part = group_ * block_n * 128;
        const std::uint64_t left = matrix_descriptor(shared_address(ds) + (halves_columns ? 0 : part), 0);
        const std::uint64_t right = matrix_descriptor(shared_address(memory_.k) + (halves_columns ? part : 0), 0);
#pragma unroll
        for (int step = 0; step < block_n / 16; ++step) {
            multiply_add<Math, 64, true, true>(dq, left + step * 2048 / 16, right + step * 2048 / 16, step > 0 ? 1 : 0);
        }
    }

    /// p = 2^(s - lse), 0 where a mask hides the key.
    __device__ __forceinline__ void probabilities(float (&s)[scores], const float* lse, float factor, int i0,
                                                  const Range& interior, const VisibleColumns& queries) const
    {
        if (i0 < interior.begin || i0 + block_m > interior.end) {
            queries.hide(s, i0 + at_.column());
        }
        const float2* const of_lane = reinterpret_cast<const float2*>(lse) + at_.lane % 4;
#pragma unroll
        for (int i = 0; i < scores; i += 4) {
            exponentials(s + i, factor, of_lane[i]);
        }
    }

    /// The same of modified scores. p: what dropout keeps of them, rounded; s: p times what a softcap does to dS.
    __device__ __forceinline__ void modified_probabilities(float (&s)[scores], std::uint32_t (&p)[block_m / 16][4],
                                                           const BackwardItem<Shape>& item, int head, const float* lse,
                                                           int row, int i0, const Range& interior,
                                                           const VisibleColumns& queries)
    {
        const int column = i0 + at_.column();
        const bool hides = i0 < interior.begin || i0 + block_m > interior.end;
        logits_.make(s, item, head, row, column, hides, [&] { queries.hide(s, column); });
        logits_.draw(item, head, row, column);
        constexpr bool has_softcap = Shape::softcap == Softcap::alone;
        const LogitExponent<Shape> exponent{Scores::unit(p_)};
        const float inverse = has_softcap ? offload::quotient(p_.scale, p_.softcap) : 0.0F;
        const float2* const of_lane = reinterpret_cast<const float2*>(lse) + at_.lane % 4;
#pragma unroll
        for (int i = 0; i < scores; i += 2) {
            const float2 base = of_lane[i / 4 * 4];
            const float x = ptx::exp2_approx(exponent(s[i], base.x));
            const float y = ptx::exp2_approx(exponent(s[i + 1], base.y));
            p[i / 8][i / 2 % 4] = Math::pack(logits_.kept().of(x, i), logits_.kept().of(y, i + 1));
            s[i] = has_softcap ? x * Scores::slope_at(s[i], inverse) : x;
            s[i + 1] = has_softcap ? y * Scores::slope_at(s[i + 1], inverse) : y;
        }
    }

    /// dsᵀ to shared memory: keys along the rows, 64 queries a panel.
    __device__ __forceinline__ void share(const std::uint32_t (&ds)[block_m / 16][4], unsigned char* shared) const
    {
        const unsigned r = group_ * 64 + at_.warp * 16 + at_.lane / 8 % 2 * 8 + at_.lane % 8;
        const std::uint32_t row = shared_address(shared) + r * 128;
#pragma unroll
        for (int step = 0; step < block_m / 16; ++step) {
            const unsigned chunk = step % 4 * 2 + at_.lane / 16;
            store_matrices(row + step / 4 * block_n * 128 + (chunk ^ (r % 8)) * 16, ds[step]);
        }
    }

    /// dk or dv, by way of the warp's rows of k or v, to memory.
    __device__ __forceinline__ void store(const float (&sum)[sums], float by, const offload::Tensor& tensor, int width,
                                          unsigned char* shared, const BackwardItem<Shape>& item) const
    {
        const int row = 64 * group_ + 16 * static_cast<int>(at_.warp);
        const int j = item.j0 + row;
        auto* const target = static_cast<std::uint16_t*>(tensor.data) + item.batch * tensor.batch +
                             item.head_kv * tensor.head + (item.k_start + j) * tensor.row;
        store_rows<Math, block_n>(sum, by, by, shared_address(shared) + row * 128, target, tensor.row,
                                  item.band.k_len - j, width, p_.nonfinite);
    }

    static constexpr int all_keys = 1; ///< hardware barrier of both groups
    __device__ __forceinline__ int own_threads() const
    {
        return 2 + group_;
    } ///< of this one alone

    BackwardMemory<Shape>& memory_;
    const Params& p_;
    const int group_;
    const Lane at_;
    RingPlace<Shape::stages> q_;
    unsigned kv_parity_ = 0, dq_parity_ = 0;
    int sender_ = 0; ///< of the next sum
    int ds_buffer_ = 0;
    [[no_unique_address]] BlockLogits<Shape, BackwardMemory<Shape>, true> logits_;
};

template <class Shape>
__global__ void __launch_bounds__(Shape::threads, 1)
    hopper_backward_kernel(const __grid_constant__ Params p, const __grid_constant__ BackwardMaps maps,
                           const __grid_constant__ Schedule schedule, const __grid_constant__ BackwardScratch scratch)
{
    auto& memory = block_memory<BackwardMemory<Shape>>();
    if (threadIdx.x == 0) {
        constexpr unsigned readers = 4 * Shape::groups * Lane::speakers;
        memory.kv_full.init(1);
        memory.kv_empty.init(readers);
        for (Barrier& full : memory.dq_full) {
            full.init(readers);
        }
        memory.dq_empty.init(1);
        for (int i = 0; i < Shape::stages; ++i) {
            memory.q_full[i].init(1);
            memory.q_empty[i].init(readers);
            memory.dout_full[i].init(1);
            memory.dout_empty[i].init(readers);
        }
        if constexpr (Shape::bias_bytes > 0) {
            memory.bias_barriers.init();
        }
        memory.items.init(readers + Shape::senders);
        publish_barriers();
    }
    __syncthreads();
    const int group = warpgroup() - 1;
    if (group < 0) {
        give_registers<24>();
        if (threadIdx.x == 0) {
            bring_backward(memory, p, maps, schedule, scratch);
        } else if (threadIdx.x % 32 == 0 && static_cast<int>(threadIdx.x / 32) <= Shape::senders) {
            send_dq(memory, p, schedule, scratch, static_cast<int>(threadIdx.x / 32) - 1);
        }
    } else {
        take_registers<240>();
        BackwardGroup<Shape>(memory, p, maps.bias.is_there, group).run(schedule);
    }
}

/// dq from its float32 sums, one query block a thread block of 256.
template <class Shape>
__global__ void hopper_dq_kernel(const __grid_constant__ Params p, const __grid_constant__ BackwardScratch scratch)
{
    using Math = typename Shape::Math;
    const std::int64_t tile = blockIdx.x;
    const int block = static_cast<int>(tile % scratch.blocks);
    const int head = static_cast<int>(tile / scratch.blocks % p.heads_q);
    const int batch = static_cast<int>(tile / scratch.blocks / p.heads_q);
    const offload::Sequence sequence = offload::sequence(p, batch);
    const Range adding = key_blocks<Shape>(offload::band_of(p, sequence), block);
    const bool has_any = adding.end > adding.begin;
    const unsigned group = threadIdx.x / 128, thread = threadIdx.x % 128;
    const unsigned lane = thread % 32;
    constexpr bool halves_columns = Shape::query_panels == 1; // see issue_dq()
    const int row = block * Shape::block_m + (halves_columns ? 0 : 64 * group) + thread / 32 * 16 + lane / 4;
    auto* const target =
        static_cast<std::uint16_t*>(p.dq.data) + batch * p.dq.batch + head * p.dq.head + sequence.q_start * p.dq.row;
    const auto* const sums =
        reinterpret_cast<const float4*>(scratch.dq + tile * Shape::dq_floats) + group * 1024 + thread;
    offload::FiniteCheck check;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const float4 x = has_any ? sums[128 * i] : make_float4(0.0F, 0.0F, 0.0F, 0.0F);
        for (const float value : {x.x, x.y, x.z, x.w}) {
            check.see(value, 0.0F);
        }
        const int column = (halves_columns ? 64 * group : 0) + 8 * i + lane % 4 * 2;
        if (column < p.head_dim) {
            if (row < sequence.q_len) {
                *reinterpret_cast<std::uint32_t*>(target + row * p.dq.row + column) =
                    Math::pack(x.x * p.scale, x.y * p.scale);
            }
            if (row + 8 < sequence.q_len) {
                *reinterpret_cast<std::uint32_t*>(target + (row + 8) * p.dq.row + column) =
                    Math::pack(x.z * p.scale, x.w * p.scale);
            }
        }
    }
    check.report(p.nonfinite);
}

} // namespace flashomp::cuda
