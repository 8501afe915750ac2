// Choosing and launching the kernels of few queries.
#include "algorithm/pair_mask.hpp"
#include "algorithm/rounded_delta.hpp"
#include "few_kernels.hpp"
#include "grid.cuh"
#include "nvidia/few_queries.hpp"

namespace flashomp::cuda {

namespace {

using offload::FewQueriesShape;
using offload::KeyParts;

/// Blocks of a multiprocessor: what their registers and an H200's shared memory have room for.
template <class Shape>
constexpr int blocks_at_once = Shape::depth* Shape::tiles > 256 ? 2 : 3;

template <class Shape>
__global__ void __launch_bounds__(Shape::threads, blocks_at_once<Shape>)
    few_queries_kernel(const __grid_constant__ Params params, const __grid_constant__ KeyParts parts)
{
    offload::FewQueries<Shape>(params, parts, item_index(), block_memory()).run();
}

/// Rows of a tile: all queries of a key head's group.
int rows_of(const Params& p)
{
    return p.heads_q / p.heads_kv * p.seqlen_q;
}

std::int64_t key_heads(const Params& p)
{
    return std::int64_t{p.batch} * p.heads_kv;
}

/// Parts of the keys: so many that all blocks run at one time, or so many more that the last ones are short.
template <class Shape>
int parts_of(const Params& p, int multiprocessors)
{
    constexpr int rounds_of_last = 4, most = 128;
    const std::int64_t at_once = std::int64_t{blocks_at_once<Shape>} * multiprocessors;
    const std::int64_t heads = key_heads(p);
    const std::int64_t wanted = 2 * heads <= at_once ? at_once / heads : (rounds_of_last * at_once + heads - 1) / heads;
    const std::int64_t rounds = (p.seqlen_k + Shape::round - 1) / Shape::round;
    return static_cast<int>(std::clamp<std::int64_t>(std::min(wanted, rounds), 1, most));
}

/// Calls f(Shape{}) for the shape of a call.
template <class Math, int depth, class F>
auto for_tiles(const Params& p, const F& f)
{
    if constexpr (depth <= 128) {
        if (rows_of(p) > 16) {
            return f(FewQueriesShape<Math, depth, 4>{});
        }
    }
    return rows_of(p) > 8 ? f(FewQueriesShape<Math, depth, 2>{}) : f(FewQueriesShape<Math, depth, 1>{});
}
template <class Math, class F>
auto for_depth(const Params& p, const F& f)
{
    const int depth = std::max(p.head_dim, p.head_dim_v);
    return depth <= 64    ? for_tiles<Math, 64>(p, f)
           : depth <= 128 ? for_tiles<Math, 128>(p, f)
                          : for_tiles<Math, 256>(p, f);
}
template <class F>
auto for_shape(const Params& p, const F& f)
{
    return p.element == offload::Element::bfloat16 ? for_depth<offload::ptx::BFloat16Math>(p, f)
                                                   : for_depth<offload::ptx::Float16Math>(p, f);
}

/// The workspace: counters, then the sums.
std::int64_t counter_bytes(const Params& p)
{
    return (4 * key_heads(p) + 127) / 128 * 128;
}

template <class Shape>
int launch(const StreamCall& call)
{
    const Params& p = call.params;
    auto* const stream = static_cast<cudaStream_t>(call.stream);
    KeyParts parts;
    parts.parts = parts_of<Shape>(p, call.gpu.multiprocessors);
    if (parts.parts > 1) {
        parts.arrivals = static_cast<unsigned*>(call.workspace);
        parts.sums = reinterpret_cast<float*>(static_cast<char*>(call.workspace) + counter_bytes(p));
        const auto bytes = static_cast<std::size_t>(4 * key_heads(p));
        if (const cudaError_t status = cudaMemsetAsync(parts.arrivals, 0, bytes, stream); status != cudaSuccess) {
            return status;
        }
    }
    return launch_items<few_queries_kernel<Shape>>(key_heads(p) * parts.parts, Shape::warps, Shape::shared_bytes,
                                                   stream, p, parts);
}

} // namespace

bool few_supports(const Params& p)
{
    const int depth = std::max(p.head_dim, p.head_dim_v);
    const bool is_16_bit = p.element == offload::Element::bfloat16 || p.element == offload::Element::float16;
    const bool is_plain = !p.is_modified && !offload::has_mask(p.mask) && !offload::has_seam(p) && !p.keys_are_part;
    // Of packed sequences the longest counts.
    return is_16_bit && is_plain && depth <= 256 && key_heads(p) > 0 && p.dbias.data == nullptr &&
           rows_of(p) <= offload::most_rows_of_few(depth) &&
           offload::may_keep_delta(offload::band_of(p, {0, 0, p.seqlen_q, p.seqlen_k}), p.dsink != nullptr);
}

std::int64_t few_workspace_bytes(const Params& p, int multiprocessors)
{
    return for_shape(p, [&](auto shape) {
        using Shape = decltype(shape);
        const std::int64_t parts = parts_of<Shape>(p, multiprocessors);
        return parts == 1 ? 0 : counter_bytes(p) + 4 * key_heads(p) * parts * Shape::sum_floats;
    });
}

HopperBlocks few_blocks(const Params& p, int multiprocessors)
{
    return for_shape(p, [&](auto shape) {
        using Shape = decltype(shape);
        const int parts = parts_of<Shape>(p, multiprocessors);
        const int rounds = (p.seqlen_k + Shape::round - 1) / Shape::round;
        HopperBlocks blocks;
        blocks.resident_rows = std::max(1, (rounds + parts - 1) / parts) * Shape::round;
        blocks.stream_rows = 8 * Shape::tiles;
        blocks.warps = Shape::warps;
        blocks.depth = blocks.depth_v = Shape::depth;
        blocks.stages = Shape::stages;
        blocks.is_one_pass = true;
        return blocks;
    });
}

int run_few(const StreamCall& call)
{
    return for_shape(call.params, [&](auto shape) { return launch<decltype(shape)>(call); });
}

} // namespace flashomp::cuda
