// What the dK/dV kernel of backward_wide_key.cuh keeps in shared memory, and the thread that brings it there.
#pragma once

#include "backward_items.cuh"
#include "tile/modified_scores.cuh"

namespace flashomp::cuda {

/// 16-bit type, head_dim and head_dim_v rounded up.
template <class Math_, int depth_, int depth_v_>
struct WideKeyShape {
    using Math = Math_;
    static constexpr int depth = depth_, depth_v = depth_v_, block_m = 64, block_n = 64;
    static constexpr int stages = 2, groups = 2, threads = 128 * (groups + 1);
    static constexpr bool is_modified = false, is_natural = false, repairs_lse = true;
    static constexpr Softcap softcap = Softcap::absent;
    static constexpr int bias_queries = block_m, bias_keys = block_n, bias_bytes = 0;
    static constexpr int bias_parts = 1; // P is one group's
    static constexpr int panels = depth / 64, panels_v = depth_v / 64;
    static constexpr int k_bytes = block_n * panels * 128, v_bytes = block_n * panels_v * 128;
    static constexpr int q_bytes = block_m * panels * 128, dout_bytes = block_m * panels_v * 128;
    static constexpr int dq_floats = 0; // of a sum in memory: has none
    static_assert(panels_v <= panels);  // dv leaves by way of k's place
};

/// Of query blocks under way: what rounding took from a natural LSE.
template <class Shape, bool is_there = Shape::is_natural>
struct RowResiduals {
};
template <class Shape>
struct RowResiduals<Shape, true> {
    alignas(128) float stage[Shape::stages][Shape::block_m];
};

template <class Shape>
struct WideKeyMemory {
    alignas(1024) unsigned char k[Shape::k_bytes];
    alignas(1024) unsigned char v[Shape::k_bytes]; ///< or dk, on its way out
    alignas(1024) unsigned char q[Shape::stages][Shape::q_bytes];
    alignas(1024) unsigned char dout[Shape::stages][Shape::dout_bytes];
    alignas(128) float4 p[Shape::block_m * Shape::block_n / 4]; ///< in the order of a warpgroup's registers
    alignas(128) float lse[Shape::stages][Shape::block_m];
    alignas(128) float delta[Shape::stages][Shape::block_m];
    [[no_unique_address]] RowResiduals<Shape> residual;
    [[no_unique_address]] BiasBlock<Shape> bias;
    Barrier k_full, k_empty, v_full, v_empty, p_full, p_empty;
    Barrier q_full[Shape::stages], q_empty[Shape::stages];       ///< also of lse and residual
    Barrier dout_full[Shape::stages], dout_empty[Shape::stages]; ///< also of delta
    [[no_unique_address]] BiasBarriers<Shape> bias_barriers;
    ItemSlots<BackwardItem<Shape>> items;
};

/// The copying thread: draws items; brings queries and dO with their statistics, and keys and values before the first.
template <class Shape>
__device__ __forceinline__ void bring_wide_key(WideKeyMemory<Shape>& memory, const Params& p, const BackwardMaps& maps,
                                               const Schedule& schedule, const BackwardScratch& scratch)
{
    constexpr unsigned statistics = sizeof(float) * Shape::block_m;
    RingPlace<2> place;
    RingPlace<Shape::stages> at;
    [[maybe_unused]] RingPlace<1> bias;
    unsigned parity = 1; // of places that are empty
    for (;;) {
        const auto* const next =
            memory.items.publish(place, p, schedule, [&] { return draw_item(scratch.counters + 1, schedule.items()); });
        if (next == nullptr) {
            return;
        }
        const BackwardItem<Shape>& item = *next;
        const auto keys = [&] { return keys_in_map(p, item).from(item.j0); };
        const int steps = item.steps();
        for (int step = 0; step < steps; ++step) {
            const int head = item.head(step);
            const int block = item.block(step);
            const MapRows queries = queries_in_map(p, item, head).from(block * Shape::block_m);
            const std::int64_t rows = tile_of(p, scratch, item.batch, head, block) * Shape::block_m;
            if (step == 0) {
                memory.k_empty.wait(parity);
                memory.k_full.expect(Shape::k_bytes);
                copy_panels<Shape::block_n, Shape::panels>(memory.k, maps.k, keys(), memory.k_full);
            }
            Barrier& q_full = memory.q_full[at.index];
            memory.q_empty[at.index].wait(at.parity ^ 1U);
            q_full.expect(Shape::q_bytes + (Shape::is_natural ? 2 : 1) * statistics);
            copy_panels<Shape::block_m, Shape::panels>(memory.q[at.index], maps.q, queries, q_full);
            copy_bulk(memory.lse[at.index], scratch.lse + rows, statistics, q_full);
            if constexpr (Shape::is_natural) {
                copy_bulk(memory.residual.stage[at.index], scratch.residual + rows, statistics, q_full);
            }
            if constexpr (Shape::bias_bytes > 0) {
                if (maps.bias.is_there) {
                    const MapRows of = maps.bias.queries(item.batch, head, block * Shape::block_m);
                    memory.bias_barriers.template bring<true>(memory.bias, maps.bias, bias, of, item.j0);
                }
            }
            if (step == 0) {
                memory.v_empty.wait(parity);
                memory.v_full.expect(Shape::v_bytes);
                copy_panels<Shape::block_n, Shape::panels_v>(memory.v, maps.v, keys(), memory.v_full);
                parity ^= 1U;
            }
            Barrier& dout_full = memory.dout_full[at.index];
            memory.dout_empty[at.index].wait(at.parity ^ 1U);
            dout_full.expect(Shape::dout_bytes + statistics);
            copy_panels<Shape::block_m, Shape::panels_v>(memory.dout[at.index], maps.dout, queries, dout_full);
            copy_bulk(memory.delta[at.index], scratch.delta + rows, statistics, dout_full);
            at.advance();
        }
    }
}

/// The first rows of a key block's query blocks, one after another, and the heads whose they are.
template <class Shape>
struct QueryRows {
    const int begin, end;
    int i0 = begin;
    int head = 0; ///< of the key head's group

    __device__ __forceinline__ explicit QueryRows(const BackwardItem<Shape>& item)
        : begin(item.first * Shape::block_m), end(begin + item.blocks * Shape::block_m)
    {
    }

    /// After the last of a head comes the first of the next.
    __device__ __forceinline__ void advance()
    {
        head += i0 + Shape::block_m == end ? 1 : 0;
        i0 = i0 + Shape::block_m == end ? begin : i0 + Shape::block_m;
    }
};

} // namespace flashomp::cuda
