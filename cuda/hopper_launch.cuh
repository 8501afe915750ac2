// What the launches of Hopper's kernels have in common: what the copy engine can bring, and a kernel's shared memory.
#pragma once

#include "backward_items.cuh"
#include "hopper_kernels.hpp"
#include "shared_memory.cuh"
#include "tensor_map.cuh"

#include <algorithm>
#include <cmath>

namespace flashomp::cuda {

inline Extent extent_q(const Params& p, int depth, int bytes = 2)
{
    return {p.q.is_packed ? 1 : p.batch, p.heads_q, p.q.rows, depth, bytes};
}
inline Extent extent_k(const Params& p, int depth, int bytes = 2)
{
    return {p.k.is_packed ? 1 : p.batch, p.heads_kv, p.k.rows, depth, bytes};
}

/// What the kernels of both passes ask for: some scores, and rows of q, k and v, of elements of `bytes`, and of o that
/// the copy engine can bring.
inline bool can_bring(const Params& p, int bytes)
{
    constexpr int largest_depth = 256; // that kernels are compiled for
    const bool is_empty = std::int64_t{p.batch} * p.seqlen_q * p.seqlen_k == 0;
    return !is_empty && std::max(p.head_dim, p.head_dim_v) <= largest_depth &&
           is_whole(p.q, extent_q(p, p.head_dim, bytes)) && is_whole(p.k, extent_k(p, p.head_dim, bytes)) &&
           is_whole(p.v, extent_k(p, p.head_dim_v, bytes)) && is_whole(p.o, extent_q(p, p.head_dim_v));
}

/// Whether the kernels of modified scores can do what p asks for (tile/modified_scores.cuh).
inline bool can_modify(const Params& p)
{
    const bool has_known =
        p.softcap > 0.0F || p.alibi_slopes != nullptr || p.bias.data != nullptr || p.dropout_threshold != 0;
    // The kernel divides by the scale, and has fourth powers of scale/softcap.
    const auto is_usual = [](float x) { return x >= 1e-8F && x <= 1e8F; };
    const bool has_usual_scale =
        is_usual(p.scale) && (p.softcap == 0.0F || (is_usual(p.softcap) && is_usual(p.scale / p.softcap)));
    const auto is_near = [](std::int64_t stride) { return std::abs(stride) < std::int64_t{1} << 29; }; // 2^31 bytes
    const bool has_near_bias = p.bias.data == nullptr || (is_near(p.bias.query) && is_near(p.bias.key));
    // Four keys share a draw of dropout.
    const bool has_whole_draws = p.dropout_threshold == 0 || p.place_k.first % 4 == 0;
    return has_known && has_usual_scale && has_near_bias && has_whole_draws;
}

/// Of a block, from where it is aligned on.
template <class Memory>
constexpr int shared_bytes = sizeof(Memory) + 1024;

/// Allows a kernel its shared memory on this device, which is the current one.
template <class Memory, auto kernel>
cudaError_t allow_memory(int device)
{
    static_assert(shared_bytes<Memory> <= 232448); // all there is for a block
    return allow_shared_memory<kernel>(device);
}

/// The map of a bias in the shape's boxes, where the copy engine can bring them.
template <class Shape>
BiasMap bias_map(const Params& p)
{
    BiasMap bias;
    if constexpr (Shape::bias_bytes > 0) {
        offload::Tensor tensor;
        tensor.data = p.bias.data;
        tensor.batch = p.bias.batch;
        tensor.head = p.bias.head;
        tensor.row = p.bias.query;
        bias.has_batches = p.bias.batch != 0;
        bias.has_heads = p.bias.head != 0;
        const Extent extent{bias.has_batches ? p.batch : 1, bias.has_heads ? p.heads_q : 1, p.seqlen_q, p.seqlen_k};
        if (p.bias.data != nullptr && p.bias.element != offload::Element::float32 && p.bias.key == 1 &&
            is_whole(tensor, extent)) {
            if (const auto map = map_of(tensor, extent, Shape::bias_queries)) {
                bias.map = *map;
                bias.is_there = true;
            }
        }
    }
    return bias;
}

/// Boxes of a kernel's query and key blocks.
template <class Shape>
std::optional<BackwardMaps> backward_maps(const Params& p)
{
    const auto q = map_of(p.q, extent_q(p, p.head_dim), Shape::block_m);
    const auto k = map_of(p.k, extent_k(p, p.head_dim), Shape::block_n);
    const auto v = map_of(p.v, extent_k(p, p.head_dim_v), Shape::block_n);
    const auto dout = map_of(p.dout, extent_q(p, p.head_dim_v), Shape::block_m);
    if (!q || !k || !v || !dout) {
        return {};
    }
    return BackwardMaps{*q, *k, *v, *dout, bias_map<Shape>(p)};
}

} // namespace flashomp::cuda
