// Choosing and launching the kernels of few queries.
#include "few_kernels.hpp"
#include "grid.cuh"
#include "launch/few_queries_shapes.hpp"
#include "nvidia/few_queries.hpp"

namespace flashomp::cuda {

namespace {

using offload::FewQueriesConfig;
using offload::FewQueriesShape;
using offload::KeyParts;

constexpr FewQueriesShape shape_of(int depth, int tiles)
{
    return offload::few_queries_shape(true, depth, 8 * tiles);
}

template <class Config>
__global__ void __launch_bounds__(Config::threads, shape_of(Config::depth, Config::tiles).crews)
    few_queries_kernel(const __grid_constant__ Params params, const __grid_constant__ KeyParts parts)
{
    offload::FewQueries<Config>(params, parts, item_index(), block_memory()).run();
}

template <class Math, int depth, int tiles>
int launch(const StreamCall& call)
{
    using Config = FewQueriesConfig<Math, depth, tiles, shape_of(depth, tiles).warps>;
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
    return launch_items<few_queries_kernel<Config>>(key_heads * parts.parts, Config::warps, Config::memory_bytes,
                                                    stream, p, parts);
}

template <class Math, int depth>
int launch_depth(const StreamCall& call)
{
    const int tiles = call.launch.stream_rows / 8;
    if constexpr (shape_of(depth, 4).depth > 0) {
        if (tiles == 4) {
            return launch<Math, depth, 4>(call);
        }
    }
    return tiles == 2 ? launch<Math, depth, 2>(call) : launch<Math, depth, 1>(call);
}

template <class Math>
int launch_math(const StreamCall& call)
{
    return call.launch.depth == 64    ? launch_depth<Math, 64>(call)
           : call.launch.depth == 128 ? launch_depth<Math, 128>(call)
                                      : launch_depth<Math, 256>(call);
}

} // namespace

int run_few(const StreamCall& call)
{
    return call.params.element == offload::Element::bfloat16 ? launch_math<offload::ptx::BFloat16Math>(call)
                                                             : launch_math<offload::ptx::Float16Math>(call);
}

} // namespace flashomp::cuda
