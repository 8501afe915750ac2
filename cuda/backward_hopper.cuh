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

#include "hopper_items.cuh"
#include "tile/wgmma.cuh"

namespace flashomp::cuda {

/// As for the forward pass; k and v with boxes of a key block, q and dout of a query block.
struct BackwardMaps {
    CUtensorMap q, k, v, dout;
};

/// What the kernels of a backward call hand on. Rows are padded to whole query blocks.
struct BackwardScratch {
    unsigned* counter = nullptr; ///< of items
    int* turns = nullptr;        ///< a query block: how many key blocks have added to its dQ
    float* lse = nullptr;        ///< base 2; +inf for rows without keys and beyond the end
    float* delta = nullptr;      ///< D = rowsum(dO∘O)
    float* dq = nullptr;         ///< [batch, head, query block] of tiles in the order of dq_place()
    int blocks = 0;              ///< query blocks of a head
};

/// 16-bit type, head_dim and head_dim_v rounded up, and queries of a block.
template <class Math_, int depth_, int block_m_>
struct BackwardShape {
    using Math = Math_;
    static constexpr int depth = depth_, block_m = block_m_, block_n = 128;
    static constexpr int groups = 2, stages = 2, threads = 128 * (groups + 1);
    static constexpr int panels = depth / 64, query_panels = block_m / 64;
    static constexpr int kv_bytes = block_n * panels * 128;
    static constexpr int q_bytes = block_m * panels * 128;
    static constexpr int ds_bytes = query_panels * block_n * 128;
    static constexpr int dq_floats = block_m * depth;
    static_assert(dq_floats == groups * 64 * 64); // a 64x64 part for each warpgroup
};

/// A key block of one key head, and the query blocks that see it.
template <class Shape>
struct BackwardItem {
    int batch, head_kv, j0, group; ///< j0 < 0: there are no more
    int first, blocks;             ///< query blocks that see a key of this block
    int start;                     ///< where among them it begins
    int q_start, k_start;          ///< first rows of the sequence when packed
    offload::Band band;

    __device__ __forceinline__ void set(const Params& p, const Schedule& schedule, int index)
    {
        const Schedule::Item item = schedule.item(index);
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

template <class Shape>
struct BackwardMemory {
    alignas(1024) unsigned char k[Shape::kv_bytes];
    alignas(1024) unsigned char v[Shape::kv_bytes];
    alignas(1024) unsigned char q[Shape::stages][Shape::q_bytes];
    alignas(1024) unsigned char dout[Shape::stages][Shape::q_bytes];
    alignas(1024) unsigned char ds[2][Shape::ds_bytes];
    alignas(1024) float dq[Shape::dq_floats];
    alignas(128) float lse[Shape::stages][Shape::block_m];
    alignas(128) float delta[Shape::stages][Shape::block_m];
    Barrier kv_full, kv_empty, dq_full, dq_empty;
    Barrier q_full[Shape::stages], q_empty[Shape::stages];
    Barrier dout_full[Shape::stages], dout_empty[Shape::stages];
    ItemSlots<BackwardItem<Shape>> items;
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

/// The copying thread: draws items; brings keys and values, then queries, their statistics, and dO.
template <class Shape>
__device__ __forceinline__ void bring_backward(BackwardMemory<Shape>& memory, const Params& p, const BackwardMaps& maps,
                                               const Schedule& schedule, const BackwardScratch& scratch)
{
    RingPlace<2> place;
    RingPlace<Shape::stages> at;
    unsigned kv_parity = 1;
    const auto bring = [](unsigned char* target, const CUtensorMap& map, int rows, int row, int head, int batch,
                          Barrier& barrier) {
        for (int panel = 0; panel < Shape::panels; ++panel) {
            copy_box(target + panel * rows * 128, map, 64 * panel, row, head, batch, barrier);
        }
    };
    for (;;) {
        memory.items.empty[place.index].wait(place.parity ^ 1U);
        BackwardItem<Shape>& item = memory.items.item[place.index];
        const int index = draw_item(scratch.counter, schedule.items());
        if (index < 0) {
            item.j0 = -1;
        } else {
            item.set(p, schedule, index);
        }
        memory.items.full[place.index].arrive();
        place.advance();
        if (index < 0) {
            return;
        }
        const int steps = item.steps();
        memory.kv_empty.wait(kv_parity);
        kv_parity ^= 1U;
        if (steps == 0) {
            memory.kv_full.arrive();
            continue;
        }
        memory.kv_full.expect(2 * Shape::kv_bytes);
        const int batch = p.q.is_packed ? 0 : item.batch;
        const int key = item.k_start + item.j0;
        bring(memory.k, maps.k, Shape::block_n, key, item.head_kv, batch, memory.kv_full);
        bring(memory.v, maps.v, Shape::block_n, key, item.head_kv, batch, memory.kv_full);
        for (int step = 0; step < steps; ++step) {
            const int head = item.head(step);
            const int block = item.block(step);
            const std::int64_t rows = tile_of(p, scratch, item.batch, head, block) * Shape::block_m;
            constexpr unsigned statistics = 4 * Shape::block_m;
            Barrier& q_full = memory.q_full[at.index];
            memory.q_empty[at.index].wait(at.parity ^ 1U);
            q_full.expect(Shape::q_bytes + 2 * statistics);
            const int query = item.q_start + block * Shape::block_m;
            bring(memory.q[at.index], maps.q, Shape::block_m, query, head, batch, q_full);
            copy_bulk(memory.lse[at.index], scratch.lse + rows, statistics, q_full);
            copy_bulk(memory.delta[at.index], scratch.delta + rows, statistics, q_full);
            Barrier& dout_full = memory.dout_full[at.index];
            memory.dout_empty[at.index].wait(at.parity ^ 1U);
            dout_full.expect(Shape::q_bytes);
            bring(memory.dout[at.index], maps.dout, Shape::block_m, query, head, batch, dout_full);
            at.advance();
        }
    }
}

/// The thread that sends what is added to dQ, each query block's in the order of the items. The first to come stores
/// it, so that nobody needs to clear the sum.
template <class Shape>
__device__ __forceinline__ void send_dq(BackwardMemory<Shape>& memory, const Params& p, const Schedule& schedule,
                                        const BackwardScratch& scratch)
{
    unsigned parity = 0;
    for (RingPlace<2> place;; place.advance()) {
        memory.items.full[place.index].wait(place.parity);
        const BackwardItem<Shape>& item = memory.items.item[place.index];
        if (item.j0 < 0) {
            return;
        }
        for (int step = 0; step < item.steps(); ++step) {
            const int block = item.block(step);
            const std::int64_t tile = tile_of(p, scratch, item.batch, item.head(step), block);
            const Range adding = key_blocks<Shape>(item.band, block);
            const int turn = item.turn(schedule, adding, block);
            const bool is_last = turn + 1 == adding.end - adding.begin;
            int* const turns = scratch.turns + tile;
            memory.dq_full.wait(parity);
            parity ^= 1U;
            while (load_acquire(turns) != turn) {
            }
            publish_all();
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
            wait_bulk();
            publish_all();
            store_release(turns, is_last ? 0 : turn + 1);
        }
        memory.items.empty[place.index].arrive();
    }
}

/// One computing warpgroup: keys [64·group, 64·group + 64) of each key block.
template <class Shape>
class BackwardGroup {
public:
    __device__ __forceinline__ BackwardGroup(BackwardMemory<Shape>& memory, const Params& p, int group)
        : memory_(memory), p_(p), group_(group), lane_(threadIdx.x % 32), warp_(threadIdx.x / 32 % 4)
    {
    }

    __device__ __forceinline__ void run(const Schedule& schedule)
    {
        for (RingPlace<2> place;; place.advance()) {
            memory_.items.full[place.index].wait(place.parity);
            const BackwardItem<Shape>& item = memory_.items.item[place.index];
            if (item.j0 < 0) {
                return;
            }
            attend(item);
            __syncwarp();
            release(memory_.items.empty[place.index]);
        }
    }

private:
    using Math = typename Shape::Math;
    static constexpr int block_m = Shape::block_m, block_n = Shape::block_n, depth = Shape::depth;
    static constexpr int scores = block_m / 2, sums = depth / 2; // registers

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
        const int row = item.j0 + 64 * group_ + 16 * static_cast<int>(warp_);
        store(dk, p_.scale, p_.dk, p_.head_dim, memory_.k, item, row);
        store(dv, 1.0F, p_.dv, p_.head_dim_v, memory_.v, item, row);
        publish_shared();
        __syncwarp();
        release(memory_.kv_empty);
    }

    __device__ __forceinline__ void stream(const BackwardItem<Shape>& item, float (&dk)[sums], float (&dv)[sums])
    {
        float s[scores], dp[scores];
        const float factor = p_.scale * log2_e;
        // The queries that see each of the lane's two keys.
        int first_query[2];
        unsigned queries[2];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int j = item.j0 + 64 * group_ + 16 * static_cast<int>(warp_) + static_cast<int>(lane_ / 4) + 8 * half;
            first_query[half] = max(0, j - item.band.high);
            const int end = min(item.band.q_len, j - item.band.low + 1);
            const bool is_there =
                j < item.band.k_len && (p_.key_padding_mask == nullptr ||
                                        p_.key_padding_mask[item.batch * p_.key_padding_batch_stride + j] != 0);
            queries[half] = is_there ? static_cast<unsigned>(max(0, end - first_query[half])) : 0U;
        }
        const bool is_whole = item.j0 + block_n <= item.band.k_len && p_.key_padding_mask == nullptr;
        const Range interior = is_whole ? item.band.interior_queries(item.j0, item.j0 + block_n) : Range{};

        const int steps = item.steps();
        const int i_begin = item.first * block_m, i_end = i_begin + item.blocks * block_m;
        int i0 = i_begin + item.start * block_m;
        const int whole_end = p_.q.is_packed ? item.band.q_len : i_end; // beyond are another sequence's rows
        const auto clear_rest = [&](unsigned char* rows, int first) {
            if (first + block_m > whole_end) {
                clear_rows<block_m, Shape::panels>(rows, whole_end - first, own_threads());
            }
        };
        memory_.q_full[q_.index].wait(q_.parity);
        clear_rest(memory_.q[q_.index], i0);
        fence_products();
        issue_scores(s, memory_.k, memory_.q[q_.index]);
        commit_products();
        wait_products<0>();
        pin(s);
#pragma unroll 1
        for (int step = 0; step < steps; ++step) {
            const int stage = q_.index;
            memory_.dout_full[stage].wait(q_.parity);
            clear_rest(memory_.dout[stage], i0);
            fence_products();
            issue_scores(dp, memory_.v, memory_.dout[stage]);
            commit_products();
            probabilities(s, memory_.lse[stage], factor, i0, interior, first_query, queries);
            std::uint32_t p[block_m / 16][4];
            round(s, p);
            wait_products<0>();
            pin(dp);
            const float2* const delta = reinterpret_cast<const float2*>(memory_.delta[stage]) + lane_ % 4;
#pragma unroll
            for (int i = 0; i < scores; i += 4) {
                const float2 d = delta[i];
                dp[i] = s[i] * (dp[i] - d.x);
                dp[i + 1] = s[i + 1] * (dp[i + 1] - d.y);
                dp[i + 2] = s[i + 2] * (dp[i + 2] - d.x);
                dp[i + 3] = s[i + 3] * (dp[i + 3] - d.y);
            }
            std::uint32_t ds[block_m / 16][4];
            round(dp, ds);
            fence_products();
            issue_sums(dv, p, memory_.dout[stage]);
            commit_products();
            unsigned char* const shared_ds = memory_.ds[ds_buffer_];
            ds_buffer_ ^= 1;
            share(ds, shared_ds);
            publish_shared();
            wait_products<0>(); // dv: no registers for its left operand beside what follows
            release(memory_.dout_empty[stage]);
            sync_threads(all_keys, 256);
            float dq[32];
            fence_products();
            issue_dq(dq, shared_ds);
            commit_products();
            fence_products();
            issue_sums(dk, ds, memory_.q[stage]);
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
            issue_scores(s, memory_.k, memory_.q[is_last ? stage : next.index]);
            commit_products();
            wait_products<0>(); // dk and the next s
            pin(s);
            release(memory_.q_empty[stage]);
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
        release(memory_.dq_full);
    }

    /// Transposed scores: the group's rows of k, or of v, times the rows of q, or of dO.
    __device__ __forceinline__ void issue_scores(float (&s)[scores], const unsigned char* keys,
                                                 const unsigned char* queries)
    {
        const std::uint64_t left = matrix_descriptor(shared_address(keys) + group_ * 64 * 128, 0);
        const std::uint64_t right = matrix_descriptor(shared_address(queries), 0);
#pragma unroll
        for (int step = 0; step < depth / 16; ++step) {
            const int in_panel = step % 4 * 32;
            multiply_add<Math, block_m, false, false>(s, left + (step / 4 * block_n * 128 + in_panel) / 16,
                                                      right + (step / 4 * block_m * 128 + in_panel) / 16,
                                                      step > 0 ? 1 : 0);
        }
    }

    /// dv += pᵀ·dO, dk += dsᵀ·q
    __device__ __forceinline__ void issue_sums(float (&sum)[sums], const std::uint32_t (&left)[block_m / 16][4],
                                               const unsigned char* queries)
    {
        const std::uint64_t right = matrix_descriptor(shared_address(queries), block_m * 128);
#pragma unroll
        for (int step = 0; step < block_m / 16; ++step) {
            multiply_add<Math, depth, true>(sum, left[step], right + step * 2048 / 16, 1);
        }
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
                                                  const Range& interior, const int (&first_query)[2],
                                                  const unsigned (&queries)[2]) const
    {
        if (i0 < interior.begin || i0 + block_m > interior.end) {
            const int i_lane = i0 + static_cast<int>(lane_ % 4) * 2;
            const int from[2] = {i_lane - first_query[0], i_lane - first_query[1]};
#pragma unroll
            for (int i = 0; i < scores; ++i) {
                const int column = i / 4 * 8 + i % 2;
                const int half = i / 2 % 2;
                s[i] = static_cast<unsigned>(from[half] + column) < queries[half] ? s[i] : -infinity;
            }
        }
        const float2* const of_lane = reinterpret_cast<const float2*>(lse) + lane_ % 4;
#pragma unroll
        for (int i = 0; i < scores; i += 4) {
            const float2 l = of_lane[i];
            s[i] = ptx::exp2_approx(__builtin_fmaf(s[i], factor, -l.x));
            s[i + 1] = ptx::exp2_approx(__builtin_fmaf(s[i + 1], factor, -l.y));
            s[i + 2] = ptx::exp2_approx(__builtin_fmaf(s[i + 2], factor, -l.x));
            s[i + 3] = ptx::exp2_approx(__builtin_fmaf(s[i + 3], factor, -l.y));
        }
    }

    /// As left operands.
    static __device__ __forceinline__ void round(const float (&s)[scores], std::uint32_t (&p)[block_m / 16][4])
    {
#pragma unroll
        for (int step = 0; step < block_m / 16; ++step) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                p[step][i] = Math::pack(s[8 * step + 2 * i], s[8 * step + 2 * i + 1]);
            }
        }
    }

    /// dsᵀ to shared memory: keys along the rows, 64 queries a panel.
    __device__ __forceinline__ void share(const std::uint32_t (&ds)[block_m / 16][4], unsigned char* shared) const
    {
        const unsigned r = group_ * 64 + warp_ * 16 + lane_ / 8 % 2 * 8 + lane_ % 8;
        const std::uint32_t row = shared_address(shared) + r * 128;
#pragma unroll
        for (int step = 0; step < block_m / 16; ++step) {
            const unsigned chunk = step % 4 * 2 + lane_ / 16;
            store_matrices(row + step / 4 * block_n * 128 + (chunk ^ (r % 8)) * 16, ds[step]);
        }
    }

    /// dk or dv, by way of the warp's rows of k or v, to memory.
    __device__ __forceinline__ void store(const float (&sum)[sums], float by, const offload::Tensor& tensor, int width,
                                          unsigned char* shared, const BackwardItem<Shape>& item, int first)
    {
        const std::uint32_t rows = shared_address(shared) + (group_ * 64 + warp_ * 16) * 128;
        const unsigned r = lane_ / 8 % 2 * 8 + lane_ % 8;
#pragma unroll
        for (int step = 0; step < depth / 16; ++step) {
            std::uint32_t rounded[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                rounded[i] = Math::pack(sum[8 * step + 2 * i] * by, sum[8 * step + 2 * i + 1] * by);
            }
            store_matrices(rows + chunk_offset<block_n>(r, 2 * step + lane_ / 16), rounded);
        }
        __syncwarp();
        constexpr unsigned chunks = depth / 8;
        auto* const target = static_cast<std::uint16_t*>(tensor.data) + item.batch * tensor.batch +
                             item.head_kv * tensor.head + item.k_start * tensor.row;
#pragma unroll
        for (int i = 0; i < 16 * static_cast<int>(chunks) / 32; ++i) {
            const unsigned at = (i * 32 + lane_) / chunks;
            const unsigned chunk = (i * 32 + lane_) % chunks;
            const int j = first + static_cast<int>(at);
            if (j < item.band.k_len && static_cast<int>(8 * chunk) < width) {
                *reinterpret_cast<uint4*>(target + j * tensor.row + 8 * chunk) =
                    load_shared_16(rows + chunk_offset<block_n>(at, chunk));
            }
        }
    }

    /// One lane speaks for its warp.
    __device__ __forceinline__ void release(Barrier& barrier) const
    {
        if (lane_ == 0) {
            barrier.arrive();
        }
    }

    static constexpr int all_keys = 1; ///< hardware barrier of both groups
    __device__ __forceinline__ int own_threads() const
    {
        return 2 + group_;
    } ///< of this one alone

    BackwardMemory<Shape>& memory_;
    const Params& p_;
    const int group_;
    const unsigned lane_, warp_;
    RingPlace<Shape::stages> q_;
    unsigned kv_parity_ = 0, dq_parity_ = 0;
    int ds_buffer_ = 0;
};

template <class Shape>
__global__ void __launch_bounds__(Shape::threads, 1)
    hopper_backward_kernel(const __grid_constant__ Params p, const __grid_constant__ BackwardMaps maps,
                           const __grid_constant__ Schedule schedule, const __grid_constant__ BackwardScratch scratch)
{
    extern __shared__ unsigned char raw[];
    const unsigned misaligned = shared_address(raw) % 1024;
    auto& memory = *reinterpret_cast<BackwardMemory<Shape>*>(raw + (misaligned == 0 ? 0 : 1024 - misaligned));
    if (threadIdx.x == 0) {
        constexpr unsigned warps = 4 * Shape::groups;
        memory.kv_full.init(1);
        memory.kv_empty.init(warps);
        memory.dq_full.init(warps);
        memory.dq_empty.init(1);
        for (int i = 0; i < Shape::stages; ++i) {
            memory.q_full[i].init(1);
            memory.q_empty[i].init(warps);
            memory.dout_full[i].init(1);
            memory.dout_empty[i].init(warps);
        }
        memory.items.init(warps + 1);
        publish_barriers();
    }
    __syncthreads();
    const int group = static_cast<int>(__shfl_sync(0xFFFFFFFFU, threadIdx.x / 128, 0)) - 1; // known to be a warp's
    if (group < 0) {
        give_registers<24>();
        if (threadIdx.x == 0) {
            bring_backward(memory, p, maps, schedule, scratch);
        } else if (threadIdx.x == 32) {
            send_dq(memory, p, schedule, scratch);
        }
    } else {
        take_registers<240>();
        BackwardGroup<Shape>(memory, p, group).run(schedule);
    }
}

/// D, and LSE to base 2, padded to whole query blocks (FlashAttention-2, Algorithm 2, line 4). Eight lanes have a row.
template <class Shape>
__global__ void hopper_rows_kernel(const __grid_constant__ Params p, const __grid_constant__ BackwardScratch scratch)
{
    using Math = typename Shape::Math;
    const int padded = scratch.blocks * Shape::block_m;
    const std::int64_t all = static_cast<std::int64_t>(p.batch) * p.heads_q * padded;
    const std::int64_t index = (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / 8;
    const unsigned part = threadIdx.x % 8;
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        *scratch.counter = 0;
    }
    if (index >= all) {
        return;
    }
    const int row = static_cast<int>(index % padded);
    const int head = static_cast<int>(index / padded % p.heads_q);
    const int batch = static_cast<int>(index / padded / p.heads_q);
    if (row % Shape::block_m == 0 && part == 0) {
        scratch.turns[index / Shape::block_m] = 0;
    }
    const offload::Sequence sequence = offload::sequence(p, batch);
    const bool is_there = row < sequence.q_len;
    float sum = 0.0F;
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
            }
        }
    }
#pragma unroll
    for (int apart = 4; apart > 0; apart /= 2) {
        sum += __shfl_xor_sync(0xFFU << (threadIdx.x % 32 / 8 * 8), sum, apart);
    }
    if (part == 0) {
        const float lse = is_there ? offload::row_stats(p.lse, batch, head, sequence.q_start)[row] : -infinity;
        scratch.lse[index] = lse == -infinity ? infinity : lse * log2_e;
        scratch.delta[index] = sum;
        if (is_there && p.delta.data != nullptr) { // for the gradient of a sink
            offload::row_stats(p.delta, batch, head, sequence.q_start)[row] = sum;
            offload::row_stats(p.residual, batch, head, sequence.q_start)[row] = 0.0F;
        }
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
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const float4 x = has_any ? sums[128 * i] : make_float4(0.0F, 0.0F, 0.0F, 0.0F);
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
}

} // namespace flashomp::cuda
