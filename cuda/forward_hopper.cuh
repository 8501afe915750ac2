// The forward pass on Hopper (FlashAttention-3, Algorithms 1 and 2). One warp has the copy engine bring blocks of keys
// and values; two or three warpgroups multiply, each for 64 query rows of its own. They take turns at the tensor cores,
// so that one group's products run while another computes its softmax, and within a group the products of block j with
// the keys are issued together with those of block j - 1 with the values.
//
// It computes what offload/algorithm/forward.hpp does. Masks, windows, key padding and sinks are in every kernel;
// softcap, ALiBi, bias and dropout are in those of a Modified shape.
#pragma once

#include "algorithm/row_statistics.hpp"
#include "hopper_items.cuh"
#include "tile/float8.cuh"
#include "tile/modified_scores.cuh"
#include "tile/products.cuh"
#include "tile/warpgroup.cuh"

namespace flashomp::cuda {

/// Tensors as [batch, head, row, depth] for the copy engine; boxes are 128 bytes of a block's rows. In 8 bits v is
/// transposed (tile/float8.cuh), for the inner dimension of a product lies along the rows there.
struct ForwardMaps {
    CUtensorMap q, k, v;
    BiasMap bias; ///< of a Modified shape
};

/// Type of the operands, head_dim and head_dim_v rounded up, keys of a block, warpgroups that compute, and query and
/// key blocks under way.
template <class Math_, int depth_, int depth_v_, int block_n_, int groups_, int q_stages_, int stages_>
struct ForwardShape {
    using Math = Math_;
    static constexpr int depth = depth_, depth_v = depth_v_, block_n = block_n_, groups = groups_;
    static constexpr int q_stages = q_stages_, stages = stages_;
    static constexpr bool is_modified = false;
    static constexpr Softcap softcap = Softcap::absent;
    static constexpr int block_m = 64 * groups;
    /// Of a bias, for each group, where there is room for a block of it: with depths over 128 there is none.
    static constexpr int bias_queries = depth <= 128 ? 64 : 0, bias_keys = block_n, bias_bytes = 0;
    static constexpr int bias_parts = groups;
    static constexpr int bytes = sizeof(typename Math::Stored);
    static constexpr int columns = 128 / bytes; // of a panel
    static constexpr int panels = (depth + columns - 1) / columns, panels_v = (depth_v + columns - 1) / columns;
    static constexpr int threads = 128 * (groups + 1);
    static constexpr int computing_registers = groups == 2 ? 240 : 160;
    static constexpr int copying_registers = groups == 2 ? 24 : 32; // all that the block began with
    static constexpr int q_bytes = block_m * panels * 128;
    static constexpr int k_bytes = block_n * panels * 128;
    static constexpr int v_bytes = bytes == 1 ? depth_v * 128 : block_n * panels_v * 128;
    static constexpr int o_bytes = block_m * ((depth_v + 63) / 64) * 128; // leaves by way of q's place
    static constexpr int place_bytes = q_bytes > o_bytes ? q_bytes : o_bytes;
    static_assert(bytes == 2 || block_n == transposed_keys);
};

template <class Shape>
struct ForwardMemory {
    alignas(1024) unsigned char q[Shape::q_stages][Shape::place_bytes];
    alignas(1024) unsigned char k[Shape::stages][Shape::k_bytes];
    alignas(1024) unsigned char v[Shape::stages][Shape::v_bytes];
    [[no_unique_address]] BiasBlock<Shape> bias;
    Barrier q_full[Shape::q_stages], q_empty[Shape::q_stages];
    Barrier k_full[Shape::stages], k_empty[Shape::stages];
    Barrier v_full[Shape::stages], v_empty[Shape::stages];
    [[no_unique_address]] BiasBarriers<Shape> bias_barriers;
    ItemSlots<QueryItem<Shape>> items;
};

/// The copying thread: draws items, and brings queries, and keys and values from the last block to the first. Each
/// thread block begins with the item of its own number. Without a counter, there are no others.
template <class Shape>
__device__ __forceinline__ void bring_forward(ForwardMemory<Shape>& memory, const Params& p, const ForwardMaps& maps,
                                              const Schedule& schedule, unsigned* counter)
{
    RingPlace<2> place;
    RingPlace<Shape::q_stages> q;
    RingPlace<Shape::stages> at;
    [[maybe_unused]] RingPlace<1> bias;
    for (bool is_first = true;; is_first = false) {
        const auto* const next = memory.items.publish(place, p, schedule, [&] {
            if (is_first) {
                return static_cast<int>(blockIdx.x);
            }
            return counter == nullptr ? -1 : draw_item(counter, schedule.items(), gridDim.x);
        });
        if (next == nullptr) {
            return;
        }
        const QueryItem<Shape>& item = *next;
        const int blocks = item.blocks;
        if (blocks == 0) {
            continue;
        }
        Barrier& q_full = memory.q_full[q.index];
        memory.q_empty[q.index].wait(q.parity ^ 1U);
        q_full.expect(Shape::q_bytes);
        copy_panels<Shape::block_m, Shape::panels, Shape::columns>(
            memory.q[q.index], maps.q, queries_in_map(p, item, item.head).from(item.i0), q_full);
        q.advance();
        for (int first = item.keys_begin + (blocks - 1) * Shape::block_n; first >= item.keys_begin;
             first -= Shape::block_n) {
            const auto rows = [&] { return keys_in_map(p, item).from(first); };
            memory.k_empty[at.index].wait(at.parity ^ 1U);
            memory.k_full[at.index].expect(Shape::k_bytes);
            copy_panels<Shape::block_n, Shape::panels, Shape::columns>(memory.k[at.index], maps.k, rows(),
                                                                       memory.k_full[at.index]);
            memory.v_empty[at.index].wait(at.parity ^ 1U);
            memory.v_full[at.index].expect(Shape::v_bytes);
            if constexpr (Shape::bytes == 1) {
                copy_box(memory.v[at.index], maps.v, rows().row, {0, rows().head, rows().batch},
                         memory.v_full[at.index]);
            } else {
                copy_panels<Shape::block_n, Shape::panels_v>(memory.v[at.index], maps.v, rows(),
                                                             memory.v_full[at.index]);
            }
            if constexpr (Shape::bias_bytes > 0) {
                if (maps.bias.is_there) {
                    memory.bias_barriers.template bring<false>(
                        memory.bias, maps.bias, bias, maps.bias.queries(item.batch, item.head, item.i0), first);
                }
            }
            at.advance();
        }
    }
}

/// One computing warpgroup: rows [64·group, 64·group + 64) of each query block.
template <class Shape>
class ForwardGroup {
public:
    using Scales = typename ForwardOperands<typename Shape::Math>::Scales;

    __device__ __forceinline__ ForwardGroup(ForwardMemory<Shape>& memory, const Params& p, const Scales& scales,
                                            bool brings_bias, int group)
        : memory_(memory), p_(p), scales_(scales), brings_bias_(brings_bias), group_(group)
    {
    }

    __device__ __forceinline__ void run(const Schedule& schedule)
    {
        if (group_ == Shape::groups - 1) {
            pass_turn(); // the first group begins
        }
        memory_.items.for_each(at_, [this](const auto& item) { attend(item); });
    }

private:
    using Math = typename Shape::Math;
    static constexpr int block_n = Shape::block_n;
    static constexpr int scores = block_n / 2, sums = Shape::depth_v / 2; // registers
    static constexpr int steps = block_n * Shape::bytes / 32;             // of a product with v
    using Scores = ModifiedScores<Math, Shape::softcap>;
    static constexpr float lag = ForwardOperands<Math>::lag, raised = ForwardOperands<Math>::raised;

    __device__ __forceinline__ void attend(const QueryItem<Shape>& item)
    {
        float o[sums];
#pragma unroll
        for (int i = 0; i < sums; ++i) {
            o[i] = 0.0F;
        }
        sum_[0] = sum_[1] = base_[0] = base_[1] = 0.0F;
        limit_[0] = limit_[1] = -infinity;
        scale_ = Shape::is_modified ? Scores::unit(p_) : p_.scale * scales_.scores(item.batch, item.head, item.head_kv);
        factor_ = scale_ * log2_e;
        lag_ = offload::quotient(lag, factor_); // in dot products (see OnlineSoftmax)
        const int row = item.i0 + 64 * group_ + at_.row();
        keys_.set_keys(item.band, row);
        if constexpr (Shape::is_modified) { // else rows past the end may see anything: nobody reads what they get
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                keys_.count[half] = row + 8 * half < item.band.q_len ? keys_.count[half] : 0U;
            }
        }
        if (item.blocks > 0) {
            stream(item, row, o);
        }
        finish(item, row, o);
    }

    __device__ __forceinline__ void stream(const QueryItem<Shape>& item, int row, float (&o)[sums])
    {
        float s[scores];
        std::uint32_t p[steps][4];
        KeptPairs<scores> kept;
        const std::uint8_t* const padding = padding_of(p_, item.batch);
        const bool may_see_all = !Shape::is_modified || item.i0 + Shape::block_m <= item.band.q_len;
        const Range interior = may_see_all ? item.interior : Range{};
        const int blocks = item.blocks;
        int j0 = item.keys_begin + (blocks - 1) * block_n;
        memory_.q_full[q_.index].wait(q_.parity);
        memory_.k_full[k_.index].wait(k_.parity);
        fence_products();
        issue_keys(s, k_.index);
        commit_products();
        draw(kept, item, row, j0);
        wait_products<0>();
        pin(s);
        at_.release(memory_.k_empty[k_.index]);
        k_.advance();
        modify(s, item, row, j0, interior, padding);
        hide(s, j0, item.band.k_len, interior, padding);
        softmax(s);
        drop(s, kept);
        round<Math>(s, p);
        if (Shape::bytes == 2 && p_.v.is_packed &&
            j0 + block_n > item.band.k_len) { // 0 times what is not a number would be none
            memory_.v_full[v_.index].wait(v_.parity);
            clear_rows<block_n, Shape::panels_v>(memory_.v[v_.index], item.band.k_len - j0, own_threads());
        }
#pragma unroll 1
        for (int block = blocks - 2; block >= 0; --block) {
            j0 -= block_n;
            memory_.k_full[k_.index].wait(k_.parity);
            take_turn();
            fence_products();
            issue_keys(s, k_.index);
            commit_products();
            memory_.v_full[v_.index].wait(v_.parity);
            fence_products();
            issue_values(o, p, v_.index);
            commit_products();
            pass_turn();
            draw(kept, item, row, j0);
            wait_products<1>();
            pin(s);
            at_.release(memory_.k_empty[k_.index]);
            k_.advance();
            modify(s, item, row, j0, interior, padding);
            hide(s, j0, item.band.k_len, interior, padding);
            const bool moved = softmax(s);
            drop(s, kept);
            wait_products<0>();
            pin(o);
            at_.release(memory_.v_empty[v_.index]);
            v_.advance();
            if (moved) {
#pragma unroll
                for (int i = 0; i < sums; ++i) {
                    o[i] *= correction_[i / 2 % 2];
                }
            }
            round<Math>(s, p);
        }
        memory_.v_full[v_.index].wait(v_.parity);
        fence_products();
        issue_values(o, p, v_.index);
        commit_products();
        wait_products<0>();
        pin(o);
        at_.release(memory_.v_empty[v_.index]);
        v_.advance();
    }

    /// s = q·kᵀ
    __device__ __forceinline__ void issue_keys(float (&s)[scores], int stage)
    {
        issue_scores<Math, Shape::block_m, Shape::depth>(s, memory_.q[q_.index], 64 * group_, memory_.k[stage]);
    }

    /// o += p·v
    __device__ __forceinline__ void issue_values(float (&o)[sums], const std::uint32_t (&p)[steps][4], int stage)
    {
        if constexpr (Shape::bytes == 2) {
            issue_sums<Math>(o, p, memory_.v[stage]);
        } else { // transposed in memory
            const std::uint64_t right = matrix_descriptor(shared_address(memory_.v[stage]), 0);
#pragma unroll
            for (int step = 0; step < steps; ++step) {
                multiply_add<Math, Shape::depth_v, false>(o, p[step], right + step * 32 / 16, 1);
            }
        }
    }

    /// Of a Modified shape: logits.
    __device__ __forceinline__ void modify(float (&s)[scores], const QueryItem<Shape>& item, int row, int j0,
                                           const Range& interior, const std::uint8_t* padding)
    {
        if constexpr (Shape::is_modified) {
            const bool hides = j0 < interior.begin || j0 + block_n > interior.end;
            if (p_.softcap > 0.0F && hides) {
                hide(s, j0, item.band.k_len, interior, padding);
            }
            const Scores modified(p_, item.band, item.batch, item.head);
            modified.template apply<false>(s, row, j0 + at_.column(), brings_bias_, hides);
            if constexpr (Shape::bias_bytes > 0) {
                if (brings_bias_) {
                    memory_.bias_barriers.read(at_, group_, bias_, [&] {
                        modified.template add_part<false, Shape::bias_queries>(s, memory_.bias.part[group_]);
                    });
                }
            }
        }
    }

    /// What dropout keeps: drawn while products are under way, and applied behind the softmax.
    __device__ __forceinline__ void draw(KeptPairs<scores>& kept, const QueryItem<Shape>& item, int row, int j0) const
    {
        if constexpr (Shape::is_modified) {
            if (p_.dropout_threshold != 0) {
                const Scores modified(p_, item.band, item.batch, item.head);
                modified.template draw<false>(kept, row, j0 + at_.column());
            }
        }
    }
    __device__ __forceinline__ void drop(float (&s)[scores], const KeptPairs<scores>& kept) const
    {
        if constexpr (Shape::is_modified) {
            if (p_.dropout_threshold != 0) {
#pragma unroll
                for (int i = 0; i < scores; ++i) {
                    s[i] = kept.of(s[i], i);
                }
            }
        }
    }

    /// -inf where the masks hide a key.
    __device__ __forceinline__ void hide(float (&s)[scores], int j0, int k_len, const Range& interior,
                                         const std::uint8_t* padding) const
    {
        if (j0 >= interior.begin && j0 + block_n <= interior.end) {
            return;
        }
        const int j = j0 + at_.column();
        keys_.hide(s, j);
        if (padding != nullptr) {
            hide_padding(s, j, k_len, padding);
        }
    }

    /// Online softmax with a base that moves only when a row's maximum passes it by 2^lag
    /// (offload/algorithm/softmax.hpp). True if it moved: what was summed before then has to be multiplied by
    /// correction_.
    __device__ __forceinline__ bool softmax(float (&s)[scores])
    {
        float most[2] = {-infinity, -infinity};
#pragma unroll
        for (int i = 0; i < scores; ++i) {
            most[i / 2 % 2] = ptx::max(most[i / 2 % 2], s[i]);
        }
        const bool moves = ptx::any_lane(most[0] > limit_[0] || most[1] > limit_[1]);
        if (moves) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                float peak = most[half];
                peak = ptx::max(peak, ptx::shuffle_xor<1>(peak));
                peak = ptx::max(peak, ptx::shuffle_xor<2>(peak));
                const auto moved = offload::moved_base<ApproximateExp2>(peak, base_[half], limit_[half], factor_, lag_);
                correction_[half] = moved.correction;
                base_[half] = moved.base;
                limit_[half] = moved.limit;
                sum_[half] *= moved.correction;
            }
        }
        const float scaled[2] = {base_[0] * factor_ - raised, base_[1] * factor_ - raised};
#pragma unroll
        for (int i = 0; i < scores; ++i) {
            const int half = i / 2 % 2;
            // Of logits of any size the difference first: the rounding of one to another base would show.
            const float exponent =
                Shape::is_modified ? (s[i] - base_[half]) * factor_ : __builtin_fmaf(s[i], factor_, -scaled[half]);
            s[i] = ptx::exp2_approx(exponent);
            sum_[half] += s[i];
        }
        return moves;
    }

    /// o and LSE.
    __device__ __forceinline__ void finish(const QueryItem<Shape>& item, int row, float (&o)[sums])
    {
        const bool has_sink = p_.sink.data != nullptr;
        float* const lse = offload::row_stats(p_.lse, item.batch, item.head, item.q_start);
        float by[2];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            constexpr float lowered = 1.0F / static_cast<float>(1 << static_cast<int>(raised));
            const int i = row + 8 * half;
            const int own = item.head * p_.sink.head + min(i, item.band.q_len - 1) * p_.sink.row;
            const float sink = has_sink ? p_.sink.data[own] : 0.0F;
            const auto end = offload::finished_row<ApproximateExp2>(row_sum(sum_[half]) * lowered, base_[half],
                                                                    limit_[half], scale_, has_sink, sink);
            by[half] = end.factor() * lowered * scales_.sums(item.batch, item.head_kv);
            if constexpr (Shape::is_modified) {
                by[half] *= p_.dropout_scale;
            }
            if (at_.lane % 4 == 0 && i < item.band.q_len) {
                lse[i] = end.lse();
            }
        }
        const int first = item.i0 + group_ * 64 + static_cast<int>(at_.warp) * 16;
        auto* const target = static_cast<std::uint16_t*>(p_.o.data) + item.batch * p_.o.batch + item.head * p_.o.head +
                             (item.q_start + first) * p_.o.row;
        const int count = item.band.q_len - first;
        if (item.blocks == 0) { // q's place is somebody else's
            store_zeros(target, p_.o.row, count, p_.head_dim_v);
            return;
        }
        const std::uint32_t rows = shared_address(memory_.q[q_.index]) + (group_ * 64 + at_.warp * 16) * 128;
        using Output = typename ForwardOperands<Math>::Output;
        store_rows<Output, Shape::block_m>(o, by[0], by[1], rows, target, p_.o.row, count, p_.head_dim_v, p_.nonfinite);
        publish_shared();
        __syncwarp();
        at_.release(memory_.q_empty[q_.index]);
        q_.advance();
    }

    /// Hardware barrier of this group alone.
    __device__ __forceinline__ int own_threads() const
    {
        return 1 + Shape::groups + group_;
    }

    /// The groups' turns at the tensor cores; hardware barrier 1 + i is group i's.
    __device__ __forceinline__ void take_turn() const
    {
        sync_threads(1 + group_, 256);
    }
    __device__ __forceinline__ void pass_turn() const
    {
        arrive_threads(1 + (group_ + 1 == Shape::groups ? 0 : group_ + 1), 256);
    }

    ForwardMemory<Shape>& memory_;
    const Params& p_;
    const Scales& scales_;
    const bool brings_bias_;
    const int group_;
    const Lane at_;
    RingPlace<Shape::stages> k_, v_;
    RingPlace<Shape::q_stages> q_;
    RingPlace<1> bias_;
    // Of the lane's two rows: statistics (offload/algorithm/softmax.hpp), and the keys that they see.
    float sum_[2], base_[2], limit_[2], correction_[2];
    float scale_, factor_, lag_;
    VisibleColumns keys_;
};

template <class Shape>
__global__ void __launch_bounds__(Shape::threads, 1)
    hopper_forward_kernel(const __grid_constant__ Params p, const __grid_constant__ ForwardMaps maps,
                          const __grid_constant__ Schedule schedule, unsigned* counter,
                          const __grid_constant__ typename ForwardGroup<Shape>::Scales scales)
{
    auto& memory = block_memory<ForwardMemory<Shape>>();
    if (threadIdx.x == 0) {
        constexpr unsigned readers = 4 * Shape::groups * Lane::speakers;
        for (int i = 0; i < Shape::q_stages; ++i) {
            memory.q_full[i].init(1);
            memory.q_empty[i].init(readers);
        }
        for (int i = 0; i < Shape::stages; ++i) {
            memory.k_full[i].init(1);
            memory.v_full[i].init(1);
            memory.k_empty[i].init(readers);
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
        give_registers<Shape::copying_registers>();
        if (threadIdx.x == 0) {
            bring_forward(memory, p, maps, schedule, counter);
        }
    } else {
        take_registers<Shape::computing_registers>();
        ForwardGroup<Shape>(memory, p, scales, maps.bias.is_there, group).run(schedule);
    }
}

} // namespace flashomp::cuda
