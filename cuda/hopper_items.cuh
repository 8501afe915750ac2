// The Hopper kernels' units of work: in which order blocks are handed out, and how the warps of a block hear of them.
#pragma once

#include "algorithm/mask.hpp"
#include "algorithm/math.hpp"
#include "algorithm/order.hpp"
#include "nvidia/ptx.hpp"
#include "tile/bulk_copy.cuh"

namespace flashomp::cuda {

namespace ptx = offload::ptx;
using offload::infinity;
using offload::ln_2;
using offload::log2_e;
using offload::Params;
using offload::Range;

/// The resident blocks of all heads of all batches, in the order of offload/algorithm/order.hpp.
struct Schedule {
    int blocks = 0, heads = 0, batches = 0;
    int heads_together = 1;
    bool descending = false;    ///< the last block first
    bool rotates = false;       ///< backward: each block starts at another place of what streams past it
    bool batches_first = false; ///< of Modified shapes: a head of all batches, and then the next head

    struct Item {
        int block, head, batch; ///< block -1: there are no more
    };

    __host__ __device__ __forceinline__ int items() const { return blocks * heads * batches; }

    template <bool is_modified>
    __device__ __forceinline__ Item item(int index) const
    {
        const auto [place, head] = offload::block_of_head(index, blocks, heads * batches, heads_together);
        const int block = descending ? blocks - 1 - place : place;
        if (is_modified && batches_first) {
            return {block, head / batches, head % batches};
        }
        return {block, head % heads, head / heads};
    }
};

/// A query block of one head, and the keys that it sees.
template <class Shape>
struct QueryItem {
    __device__ __forceinline__ bool is_end() const { return i0 < 0; }
    __device__ __forceinline__ void set_end() { i0 = -1; }

    int batch, head, head_kv, i0; ///< i0 < 0: there are no more
    int q_start, k_start;         ///< first rows of the sequence when packed
    int blocks, keys_begin;       ///< of keys, from a multiple of block_n on
    Range interior;               ///< keys that all rows see
    offload::Band band;

    __device__ __forceinline__ void set(const Params& p, const Schedule& schedule, int index)
    {
        const Schedule::Item item = schedule.item<Shape::is_modified>(index);
        batch = item.batch;
        head = item.head;
        head_kv = head / (p.heads_q / p.heads_kv);
        i0 = item.block * Shape::block_m;
        const offload::Sequence sequence = offload::sequence(p, batch);
        k_start = static_cast<int>(sequence.k_start);
        q_start = static_cast<int>(sequence.q_start);
        band = offload::band_of(p, sequence);
        const int end = min(i0 + Shape::block_m, band.q_len);
        const Range keys = i0 < band.q_len ? band.keys(i0, end) : Range{};
        keys_begin = keys.begin / Shape::block_n * Shape::block_n;
        blocks = keys.end > keys.begin ? (keys.end - keys_begin + Shape::block_n - 1) / Shape::block_n : 0;
        interior = p.key_padding_mask == nullptr && blocks > 0 ? band.interior_keys(i0, end) : Range{};
    }
};

/// The map of a bias of 16 bits, [batch, head, query, key] with axes of one row where it is the same for all.
struct BiasMap {
    CUtensorMap map{};
    bool is_there = false, has_batches = false, has_heads = false;

    __device__ __forceinline__ MapRows queries(int batch, int head, int first) const
    {
        return {first, has_heads ? head : 0, has_batches ? batch : 0};
    }
};

/// The queries of one query head of an item's sequence in the maps of q and dO.
template <class Item>
__device__ __forceinline__ MapRows queries_in_map(const Params& p, const Item& item, int head)
{
    return {item.q_start, head, p.q.is_packed ? 0 : item.batch};
}

/// The copy engine's key source (algorithm/key_source.hpp): an item's keys in the maps of k and v, from which a block
/// of rows is .from(its first key).
template <class Item>
__device__ __forceinline__ MapRows keys_in_map(const Params& p, const Item& item)
{
    return {item.k_start, item.head_kv, p.k.is_packed ? 0 : item.batch};
}

/// How the copying thread tells the others what is next. Places alternate, so that the next item is under way during
/// the last one.
template <class Item>
struct ItemSlots {
    static constexpr int places = 2;
    using Place = RingPlace<places>;
    Barrier full[places], empty[places];
    Item item[places];

    /// The copying thread: publishes the item of number draw(). Null: that there are no more.
    template <class Draw>
    __device__ __forceinline__ Item* publish(Place& place, const Params& p, const Schedule& schedule, const Draw& draw)
    {
        empty[place.index].wait(place.parity ^ 1U);
        Item& next = item[place.index];
        const int index = draw();
        if (index < 0) {
            next.set_end();
        } else {
            next.set(p, schedule, index);
        }
        full[place.index].arrive();
        place.advance();
        return index < 0 ? nullptr : &next;
    }

    /// A reader: calls f(item) for one after another.
    template <class Reader, class F>
    __device__ __forceinline__ void for_each(const Reader& at, const F& f)
    {
        for (Place place;; place.advance()) {
            full[place.index].wait(place.parity);
            const Item& next = item[place.index];
            if (next.is_end()) {
                return;
            }
            f(next);
            __syncwarp();
            at.release(empty[place.index]);
        }
    }

    __device__ __forceinline__ void init(unsigned readers)
    {
        for (int i = 0; i < places; ++i) {
            full[i].init(1);
            empty[i].init(readers);
        }
    }
};

/// The next item of all thread blocks, or -1. The counter is `first` less than the number of the item, and 0 before the
/// launch.
__device__ __forceinline__ int draw_item(unsigned* counter, int items, unsigned first = 0)
{
    const unsigned drawn = first + atomicAdd(counter, 1U);
    return drawn < static_cast<unsigned>(items) ? static_cast<int>(drawn) : -1;
}

/// The memory of a thread block, from where it is aligned on.
template <class Memory>
__device__ __forceinline__ Memory& block_memory()
{
    extern __shared__ unsigned char raw[];
    const unsigned misaligned = shared_address(raw) % 1024;
    return *reinterpret_cast<Memory*>(raw + (misaligned == 0 ? 0 : 1024 - misaligned));
}

/// The number of the thread's warpgroup, which is known to be the same for all its warp.
__device__ __forceinline__ int warpgroup()
{
    return static_cast<int>(__shfl_sync(0xFFFFFFFFU, threadIdx.x / 128, 0));
}

} // namespace flashomp::cuda
