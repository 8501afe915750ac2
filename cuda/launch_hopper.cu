// Choosing and launching the Hopper kernels.
#include "backward_hopper.cuh"
#include "forward_hopper.cuh"
#include "hopper.hpp"
#include "score.hpp"
#include "tensor_map.cuh"

#include <algorithm>
#include <atomic>

namespace flashomp::cuda {

namespace {

using offload::Element;
using offload::Pass;
using offload::Tensor;

Extent extent_q(const Params& p, int depth)
{
    return {p.q.is_packed ? 1 : p.batch, p.heads_q, p.q.rows, depth};
}
Extent extent_k(const Params& p, int depth)
{
    return {p.k.is_packed ? 1 : p.batch, p.heads_kv, p.k.rows, depth};
}

/// Multiprocessors of the device, asked once.
int multiprocessors(int device)
{
    constexpr int most = 64;
    static std::atomic<int> known[most];
    if (device < most && known[device] != 0) {
        return known[device];
    }
    int count = 1;
    cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device);
    if (device < most) {
        known[device] = count;
    }
    return count;
}

/// How many heads' keys and values a part of the L2 cache holds.
int heads_in_cache(const Params& p)
{
    constexpr std::int64_t cache = 24 << 20;
    const std::int64_t bytes = 2LL * p.seqlen_k * (p.head_dim + p.head_dim_v) * p.heads_kv / p.heads_q;
    return static_cast<int>(std::clamp<std::int64_t>(cache / std::max<std::int64_t>(bytes, 1), 1, 64));
}

/// Whether a mask hides keys from rows that a sequence's ends do not.
bool has_band(const Params& p)
{
    const auto longest = std::max(p.seqlen_q, p.seqlen_k);
    const auto is_limit = [&](std::int64_t side) { return side >= 0 && side < longest; };
    return p.causal != offload::Alignment::none || is_limit(p.window_left) || is_limit(p.window_right);
}

/// Keys that a row of the longest sequence sees at most.
int most_keys(const Params& p)
{
    const offload::Band band = offload::band_of(p, {0, 0, p.seqlen_q, p.seqlen_k});
    return std::min({band.k_len, band.high - band.low + 1, p.seqlen_q + band.high});
}

template <class Shape>
int launch_forward(const Params& p, unsigned* counter, cudaStream_t stream, int device)
{
    const auto q = map_of(p.q, extent_q(p, p.head_dim), Shape::block_m);
    const auto k = map_of(p.k, extent_k(p, p.head_dim), Shape::block_n);
    const auto v = map_of(p.v, extent_k(p, p.head_dim_v), Shape::block_n);
    if (!q || !k || !v) {
        return cudaErrorInvalidValue;
    }
    Schedule schedule;
    schedule.blocks = (p.seqlen_q + Shape::block_m - 1) / Shape::block_m;
    schedule.heads = p.heads_q;
    schedule.batches = p.batch;
    schedule.descending = true;
    schedule.heads_together = has_band(p) ? heads_in_cache(p) : 1;
    const int items = schedule.blocks * schedule.heads * schedule.batches;
    if (const cudaError_t status = cudaMemsetAsync(counter, 0, sizeof *counter, stream); status != cudaSuccess) {
        return status;
    }
    constexpr int bytes = sizeof(ForwardMemory<Shape>) + 1024;
    const auto kernel = &hopper_forward_kernel<Shape>;
    static const cudaError_t allowed = // of the function, on every device
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (allowed != cudaSuccess) {
        return allowed;
    }
    kernel<<<std::min(items, multiprocessors(device)), Shape::threads, bytes, stream>>>(p, {*q, *k, *v}, schedule,
                                                                                        counter);
    return cudaGetLastError();
}

template <class Math>
int forward(const Params& p, unsigned* counter, cudaStream_t stream, int device)
{
    const int depth = std::max(p.head_dim, p.head_dim_v);
    if (depth <= 64) {
        return has_band(p) ? launch_forward<ForwardShape<Math, 64, 64, 96, 3, 2, 4>>(p, counter, stream, device)
                           : launch_forward<ForwardShape<Math, 64, 64, 128, 3, 2, 4>>(p, counter, stream, device);
    }
    if (depth <= 96) {
        return launch_forward<ForwardShape<Math, 96, 96, 128, 2, 2, 2>>(p, counter, stream, device);
    }
    if (depth <= 128) {
        return launch_forward<ForwardShape<Math, 128, 128, 128, 2, 2, 2>>(p, counter, stream, device);
    }
    if (p.head_dim <= 192 && p.head_dim_v <= 128) {
        return launch_forward<ForwardShape<Math, 192, 128, 128, 2, 1, 2>>(p, counter, stream, device);
    }
    return launch_forward<ForwardShape<Math, 256, 256, 80, 2, 1, 2>>(p, counter, stream, device);
}

/// The workspace: a counter of items, then what BackwardScratch names.
template <class Shape>
std::int64_t place_scratch(const Params& p, void* workspace, BackwardScratch& scratch)
{
    scratch.blocks = (p.seqlen_q + Shape::block_m - 1) / Shape::block_m;
    const std::int64_t tiles = std::int64_t{p.batch} * p.heads_q * scratch.blocks;
    std::int64_t used = 128;
    const auto take = [&](std::int64_t bytes) {
        void* const place = static_cast<char*>(workspace) + used;
        used += (bytes + 127) / 128 * 128;
        return place;
    };
    scratch.counter = static_cast<unsigned*>(workspace);
    scratch.turns = static_cast<int*>(take(4 * tiles));
    scratch.lse = static_cast<float*>(take(4 * tiles * Shape::block_m));
    scratch.delta = static_cast<float*>(take(4 * tiles * Shape::block_m));
    scratch.dq = static_cast<float*>(take(4 * tiles * Shape::dq_floats));
    return used;
}

template <class Shape>
int launch_backward(const Params& p, void* workspace, cudaStream_t stream, int device)
{
    const auto q = map_of(p.q, extent_q(p, p.head_dim), Shape::block_m);
    const auto k = map_of(p.k, extent_k(p, p.head_dim), Shape::block_n);
    const auto v = map_of(p.v, extent_k(p, p.head_dim_v), Shape::block_n);
    const auto dout = map_of(p.dout, extent_q(p, p.head_dim_v), Shape::block_m);
    if (!q || !k || !v || !dout) {
        return cudaErrorInvalidValue;
    }
    BackwardScratch scratch;
    place_scratch<Shape>(p, workspace, scratch);
    Schedule schedule;
    schedule.blocks = (p.seqlen_k + Shape::block_n - 1) / Shape::block_n;
    schedule.heads = p.heads_kv;
    schedule.batches = p.batch;
    // Under a causal mask a key block begins with the query block of its own rows: the last one gets everywhere first.
    schedule.descending = has_band(p);
    // Without one, they all would begin with the first query block, and wait for one another to add to its dQ.
    schedule.rotates = !has_band(p) && !p.q.is_packed && 2 * schedule.blocks <= multiprocessors(device);
    constexpr int bytes = sizeof(BackwardMemory<Shape>) + 1024;
    const auto kernel = &hopper_backward_kernel<Shape>;
    static const cudaError_t allowed = // of the function, on every device
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (allowed != cudaSuccess) {
        return allowed;
    }
    const std::int64_t tiles = std::int64_t{p.batch} * p.heads_q * scratch.blocks;
    const int items = schedule.blocks * schedule.heads * schedule.batches;
    hopper_rows_kernel<Shape>
        <<<static_cast<unsigned>((8 * tiles * Shape::block_m + 255) / 256), 256, 0, stream>>>(p, scratch);
    cudaLaunchConfig_t config{};
    config.gridDim = static_cast<unsigned>(std::min(items, multiprocessors(device)));
    config.blockDim = Shape::threads;
    config.dynamicSmemBytes = bytes;
    config.stream = stream;
    cudaLaunchAttribute together{}; // blocks wait for one another: none may be kept out by another stream's
    together.id = cudaLaunchAttributeCooperative;
    together.val.cooperative = 1;
    config.attrs = &together;
    config.numAttrs = 1;
    const BackwardMaps maps{*q, *k, *v, *dout};
    if (const cudaError_t status = cudaLaunchKernelEx(&config, kernel, p, maps, schedule, scratch);
        status != cudaSuccess) {
        return status;
    }
    hopper_dq_kernel<Shape><<<static_cast<unsigned>(tiles), 256, 0, stream>>>(p, scratch);
    return cudaGetLastError();
}

/// Calls f<Shape>() for the shape that a backward pass takes.
template <class F>
auto for_backward_shape(const Params& p, F f)
{
    const bool is_small = std::max(p.head_dim, p.head_dim_v) <= 64;
    if (p.element == Element::bfloat16) {
        return is_small ? f.template operator()<BackwardShape<ptx::BFloat16Math, 64, 128>>()
                        : f.template operator()<BackwardShape<ptx::BFloat16Math, 128, 64>>();
    }
    return is_small ? f.template operator()<BackwardShape<ptx::Float16Math, 64, 128>>()
                    : f.template operator()<BackwardShape<ptx::Float16Math, 128, 64>>();
}

} // namespace

bool hopper_supports(Pass pass, const Params& p)
{
    const bool is_16_bit = p.element == Element::bfloat16 || p.element == Element::float16;
    const bool is_empty = std::int64_t{p.batch} * p.seqlen_q * p.seqlen_k == 0;
    if (!is_16_bit || is_empty || offload::has_modifications(p) || map_encoder() == nullptr) {
        return false;
    }
    if (!is_whole(p.q, extent_q(p, p.head_dim)) || !is_whole(p.k, extent_k(p, p.head_dim)) ||
        !is_whole(p.v, extent_k(p, p.head_dim_v)) || !is_whole(p.o, extent_q(p, p.head_dim_v))) {
        return false;
    }
    if (pass == Pass::forward) {
        return p.splits == 1;
    }
    // D comes from an O that was rounded. Where rows see few keys, that is more than all other errors of dS, and the
    // other kernels, which sum P∘dP in a pass of its own, correct it (offload/backward.hpp).
    constexpr int few_keys = 256;
    return pass == Pass::backward_query && most_keys(p) >= few_keys && std::max(p.head_dim, p.head_dim_v) <= 128 &&
           is_whole(p.dout, extent_q(p, p.head_dim_v)) && is_whole(p.dq, extent_q(p, p.head_dim)) &&
           is_whole(p.dk, extent_k(p, p.head_dim)) && is_whole(p.dv, extent_k(p, p.head_dim_v));
}

std::int64_t hopper_workspace_bytes(Pass pass, const Params& params)
{
    if (pass == Pass::forward) {
        return 128;
    }
    return for_backward_shape(params, [&]<class Shape>() {
        BackwardScratch scratch;
        return place_scratch<Shape>(params, nullptr, scratch);
    });
}

int run_hopper(Pass pass, const Params& params, void* workspace, void* stream, int device)
{
    auto* const on = static_cast<cudaStream_t>(stream);
    if (pass != Pass::forward) {
        return for_backward_shape(params,
                                  [&]<class Shape>() { return launch_backward<Shape>(params, workspace, on, device); });
    }
    auto* const counter = static_cast<unsigned*>(workspace);
    return params.element == Element::bfloat16 ? forward<ptx::BFloat16Math>(params, counter, on, device)
                                               : forward<ptx::Float16Math>(params, counter, on, device);
}

} // namespace flashomp::cuda
