// Choosing and launching the kernels of few queries.
#include "few_kernels.hpp"
#include "grid.cuh"
#include "launch/few_queries_shapes.hpp"
#include "launch/keys.hpp"
#include "nvidia/few_queries_backward.hpp"
#include "nvidia/few_queries_forward.hpp"

namespace flashomp::cuda {

namespace {

using offload::FewQueriesConfig;
using offload::FewQueriesItems;
using offload::FewQueriesShape;
using offload::KeyParts;

constexpr FewQueriesShape shape_of(bool backward, int depth, int tiles)
{
    return offload::few_queries_shape(backward, true, depth, 8 * tiles);
}

template <class Config>
constexpr FewQueriesShape shape_with()
{
    return shape_of(Config::is_backward, Config::depth, Config::tiles);
}

template <class Config>
__global__ void __launch_bounds__(Config::threads, shape_with<Config>().crews)
    few_backward_kernel(const __grid_constant__ Params params, const __grid_constant__ KeyParts parts)
{
    offload::FewQueriesBackward<Config>(params, parts, item_index(), block_memory()).run();
}

/// Blocks of threads: parts of the keys along x, blocks of heads along y, of queries along z, from number `first` on.
template <class Config, class Source>
__global__ void __launch_bounds__(Config::threads, shape_with<Config>().crews)
    few_forward_kernel(const __grid_constant__ Params params, const __grid_constant__ Launch launch, int first)
{
    const auto number = [](unsigned index) { return static_cast<int>(index); };
    const offload::FewQueriesItem item =
        FewQueriesItems(params, launch).item(number(blockIdx.x), number(blockIdx.y), first + number(blockIdx.z));
    offload::FewQueriesForward<Config, Source>(params, launch, item, block_memory()).run(launch.arrivals);
}

template <class Config>
int launch_backward(const StreamCall& call)
{
    const Params& p = call.params;
    auto* const stream = static_cast<cudaStream_t>(call.stream);
    const std::int64_t key_heads = std::int64_t{p.batch} * p.heads_kv;
    KeyParts parts;
    parts.parts = offload::key_parts(p, call.launch);
    if (parts.parts > 1) {
        parts.arrivals = static_cast<unsigned*>(call.workspace);
        parts.sums = reinterpret_cast<float*>(static_cast<char*>(call.workspace) + few_counter_bytes(key_heads));
        const auto bytes = static_cast<std::size_t>(4 * key_heads);
        if (const cudaError_t status = cudaMemsetAsync(parts.arrivals, 0, bytes, stream); status != cudaSuccess) {
            return status;
        }
    }
    return launch_items<few_backward_kernel<Config>>(key_heads * parts.parts, Config::warps, Config::memory_bytes,
                                                     stream, p, parts);
}

template <class Config>
int launch_forward(const StreamCall& call)
{
    const Params& p = call.params;
    const FewQueriesItems items(p, call.launch);
    return offload::with_keys<Pass::forward>(p.cache, [&]<class Source>() {
        constexpr std::int64_t most_blocks = 65535; // along z
        for (std::int64_t first = 0; first < items.of_head(); first += most_blocks) {
            const dim3 grid(static_cast<unsigned>(p.splits), static_cast<unsigned>(items.heads()),
                            static_cast<unsigned>(std::min(most_blocks, items.of_head() - first)));
            const int status = launch_grid<few_forward_kernel<Config, Source>>(
                grid, Config::warps, Config::memory_bytes, static_cast<cudaStream_t>(call.stream), p, call.launch,
                static_cast<int>(first));
            if (status != cudaSuccess) {
                return status;
            }
        }
        return static_cast<int>(cudaSuccess);
    });
}

template <class Math, bool backward, int depth, int tiles>
int launch(const StreamCall& call)
{
    using Config = FewQueriesConfig<Math, backward, depth, tiles, shape_of(backward, depth, tiles).warps>;
    if constexpr (backward) {
        return launch_backward<Config>(call);
    } else {
        return launch_forward<Config>(call);
    }
}

template <class Math, bool backward, int depth>
int launch_depth(const StreamCall& call)
{
    const int tiles = offload::few_tiles(call.launch);
    if constexpr (shape_of(backward, depth, 4).depth > 0) {
        if (tiles == 4) {
            return launch<Math, backward, depth, 4>(call);
        }
    }
    return tiles == 2 ? launch<Math, backward, depth, 2>(call) : launch<Math, backward, depth, 1>(call);
}

template <class Math, bool backward>
int launch_pass(const StreamCall& call)
{
    return call.launch.depth == 64    ? launch_depth<Math, backward, 64>(call)
           : call.launch.depth == 128 ? launch_depth<Math, backward, 128>(call)
                                      : launch_depth<Math, backward, 256>(call);
}

template <class Math>
int launch_math(const StreamCall& call)
{
    return call.launch.pass == Pass::forward ? launch_pass<Math, false>(call) : launch_pass<Math, true>(call);
}

} // namespace

int run_few(const StreamCall& call)
{
    return call.params.element == offload::Element::bfloat16 ? launch_math<offload::ptx::BFloat16Math>(call)
                                                             : launch_math<offload::ptx::Float16Math>(call);
}

} // namespace flashomp::cuda
