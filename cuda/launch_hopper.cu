// Choosing and launching the Hopper kernels.
#include "algorithm/rounded_delta.hpp"
#include "algorithm/score.hpp"
#include "backward_hopper.cuh"
#include "backward_wide_key.cuh"
#include "backward_wide_query.cuh"
#include "forward_hopper.cuh"
#include "hopper_launch.cuh"

namespace flashomp::cuda {

namespace {

using offload::Element;
using offload::Pass;
using offload::Tensor;

/// Of how many heads a part of the L2 cache holds what streams past a head's blocks: so many rows of both depths.
int heads_in_cache(const Params& p, const Gpu& gpu, std::int64_t rows)
{
    constexpr std::int64_t most = 24 << 20; // of an H200's 50 MB; more was not measured
    const std::int64_t cache = gpu.l2_bytes > 0 ? std::min(most, gpu.l2_bytes / 50 * 24) : most;
    const std::int64_t bytes = 2 * rows * (p.head_dim + p.head_dim_v);
    return static_cast<int>(std::clamp<std::int64_t>(cache / std::max<std::int64_t>(bytes, 1), 1, 64));
}

/// can_modify() of backward, whose kernels take the slope of a softcap from the logit.
bool can_modify_backward(const Params& p)
{
    const int depth = std::max(p.head_dim, p.head_dim_v);
    const bool has_more = p.alibi_slopes != nullptr || p.bias.data != nullptr;
    const bool has_softcap = p.softcap > 0.0F;
    // Up to this depth D is not repaired (rounded_delta.hpp), which shows in dK where it is a sum over few queries.
    constexpr int most_unrepaired = 128, fewest_queries = 64;
    constexpr float largest_softcap = 4096.0F; // LSE of more is not repaired (hopper_rows_kernel)
    return can_modify(p) && (depth > most_unrepaired || p.seqlen_q >= fewest_queries) && !(has_softcap && has_more) &&
           p.softcap < largest_softcap;
}

/// Whether a mask hides keys from rows that a sequence's ends do not.
bool has_band(const Params& p)
{
    const auto longest =
        p.has_positions ? std::max(p.whole_q, p.whole_k) : std::max(p.seqlen_q, p.seqlen_k); // of a shard the whole
    const auto is_limit = [&](std::int64_t side) { return side >= 0 && side < longest; };
    return p.causal != offload::Alignment::none || is_limit(p.window_left) || is_limit(p.window_right);
}

/// Has the heads come together that read the same bias, at most so many: it is longer than their keys and values, and
/// the L2 cache then has it for all but the first.
void share_bias(const Params& p, Schedule& schedule, int most)
{
    if (p.bias.data == nullptr) {
        return;
    }
    const bool over_heads = p.bias.head == 0, over_batches = p.bias.batch == 0;
    const int sharing = (over_heads ? schedule.heads : 1) * (over_batches ? schedule.batches : 1);
    schedule.batches_first = over_batches && !over_heads;
    schedule.heads_together =
        std::max(schedule.heads_together / sharing * sharing, std::clamp(sharing, 1, std::max(most, 1)));
}

/// Query blocks of all query heads, past which keys and values stream.
Schedule query_schedule(const Params& p, const Gpu& gpu, int block_m)
{
    Schedule schedule;
    schedule.blocks = (p.seqlen_q + block_m - 1) / block_m;
    schedule.heads = p.heads_q;
    schedule.batches = p.batch;
    schedule.descending = true;
    // A head's part of the keys and values that it shares.
    const int in_cache = heads_in_cache(p, gpu, std::int64_t{p.seqlen_k} * p.heads_kv / p.heads_q);
    schedule.heads_together = has_band(p) ? in_cache : 1;
    share_bias(p, schedule, in_cache);
    return schedule;
}

/// Key blocks of all key heads, past which queries and dO stream.
Schedule key_schedule(const Params& p, int block_n)
{
    Schedule schedule;
    schedule.blocks = (p.seqlen_k + block_n - 1) / block_n;
    schedule.heads = p.heads_kv;
    schedule.batches = p.batch;
    return schedule;
}

/// Thread blocks that draw the items.
int persistent_blocks(const Schedule& schedule, const Gpu& gpu)
{
    return std::min(schedule.items(), gpu.multiprocessors);
}

template <class Shape>
int launch_forward(const Params& p, const std::optional<CUtensorMap>& v, unsigned* counter, cudaStream_t stream,
                   const Gpu& gpu, const typename ForwardGroup<Shape>::Scales& scales = {})
{
    const auto q = map_of(p.q, extent_q(p, p.head_dim, Shape::bytes), Shape::block_m);
    const auto k = map_of(p.k, extent_k(p, p.head_dim, Shape::bytes), Shape::block_n);
    if (!q || !k || !v) {
        return cudaErrorInvalidValue;
    }
    const Schedule schedule = query_schedule(p, gpu, Shape::block_m);
    const int blocks = persistent_blocks(schedule, gpu);
    if (blocks == schedule.items()) {
        counter = nullptr; // one each: spares a small call the time to clear it
    } else if (const cudaError_t status = cudaMemsetAsync(counter, 0, sizeof *counter, stream); status != cudaSuccess) {
        return status;
    }
    using Memory = ForwardMemory<Shape>;
    constexpr auto kernel = &hopper_forward_kernel<Shape>;
    if (const cudaError_t status = allow_memory<Memory, kernel>(gpu.device); status != cudaSuccess) {
        return status;
    }
    kernel<<<blocks, Shape::threads, shared_bytes<Memory>, stream>>>(p, {*q, *k, *v, bias_map<Shape>(p)}, schedule,
                                                                     counter, scales);
    return cudaGetLastError();
}

template <class Shape>
int launch_forward(const Params& p, unsigned* counter, cudaStream_t stream, const Gpu& gpu)
{
    return launch_forward<Shape>(p, map_of(p.v, extent_k(p, p.head_dim_v), Shape::block_n), counter, stream, gpu);
}

/// The workspace: a counter of items, then the transposed values.
constexpr std::int64_t counter_bytes = 128;

int transposed_blocks(const Params& p)
{
    return (p.seqlen_k + transposed_keys - 1) / transposed_keys;
}

template <class Shape>
int launch_float8(const Params& p, const HeadScales& scales, void* workspace, cudaStream_t stream, const Gpu& gpu)
{
    const std::int64_t blocks = transposed_blocks(p);
    const std::int64_t row = blocks * transposed_keys;
    auto* const values = static_cast<std::uint8_t*>(workspace) + counter_bytes;
    Tensor transposed;
    transposed.data = values;
    transposed.row = row;
    transposed.head = p.head_dim_v * row;
    transposed.batch = p.heads_kv * transposed.head;
    transpose_values_kernel<<<static_cast<unsigned>(p.batch * p.heads_kv * blocks), 128, 0, stream>>>(
        p, values, static_cast<int>(blocks));
    const auto v = map_of(transposed, {p.batch, p.heads_kv, p.head_dim_v, row, 1}, Shape::depth_v);
    return launch_forward<Shape>(p, v, static_cast<unsigned*>(workspace), stream, gpu, scales);
}

/// Calls f(Shape{}) for the shape that a forward pass takes.
template <class Math, class F>
auto for_forward_shape(const Params& p, const F& f)
{
    const int depth = std::max(p.head_dim, p.head_dim_v);
    const auto either = [&](auto shape) { return p.is_modified ? f(Modified<decltype(shape)>{}) : f(shape); };
    if (depth <= 64) { // modified scores have no registers for more keys
        return has_band(p) || p.is_modified ? either(ForwardShape<Math, 64, 64, 96, 3, 2, 4>{})
                                            : f(ForwardShape<Math, 64, 64, 128, 3, 2, 4>{});
    }
    if (depth <= 96) {
        return either(ForwardShape<Math, 96, 96, 128, 2, 2, 2>{});
    }
    if (depth <= 128) {
        return either(ForwardShape<Math, 128, 128, 128, 2, 2, 2>{});
    }
    return p.head_dim <= 192 && p.head_dim_v <= 128 ? either(ForwardShape<Math, 192, 128, 128, 2, 1, 2>{})
                                                    : either(ForwardShape<Math, 256, 256, 80, 2, 1, 2>{});
}
template <class F>
auto for_forward_shape(const Params& p, const F& f)
{
    return p.element == Element::bfloat16 ? for_forward_shape<ptx::BFloat16Math>(p, f)
                                          : for_forward_shape<ptx::Float16Math>(p, f);
}

/// The same of 8 bits.
template <class F>
auto for_float8_shape(const Params& p, const F& f)
{
    return std::max(p.head_dim, p.head_dim_v) <= 64 ? f(ForwardShape<Float8Math, 64, 64, transposed_keys, 3, 2, 4>{})
                                                    : f(ForwardShape<Float8Math, 128, 128, transposed_keys, 2, 2, 4>{});
}

/// The workspace: counters of items, then what BackwardScratch names.
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
    scratch.counters = static_cast<unsigned*>(workspace);
    scratch.lse = static_cast<float*>(take(4 * tiles * Shape::block_m));
    scratch.delta = static_cast<float*>(take(4 * tiles * Shape::block_m));
    if constexpr (Shape::dq_floats > 0) {
        scratch.turns = static_cast<int*>(take(4 * tiles));
        scratch.dq = static_cast<float*>(take(4 * tiles * Shape::dq_floats));
    }
    if (Shape::repairs_lse && p.is_modified) { // for where LSE is natural
        scratch.residual = static_cast<float*>(take(4 * tiles * Shape::block_m));
    }
    return used;
}

/// The row statistics that the other kernels of a backward pass begin with.
template <class Shape>
void launch_rows(const Params& p, const BackwardScratch& scratch, cudaStream_t stream)
{
    const std::int64_t rows = std::int64_t{p.batch} * p.heads_q * scratch.blocks * Shape::block_m;
    hopper_rows_kernel<Shape><<<static_cast<unsigned>((8 * rows + 255) / 256), 256, 0, stream>>>(p, scratch);
}

/// All gradients in one pass.
template <class Shape>
int launch_once(const Params& p, void* workspace, cudaStream_t stream, const Gpu& gpu)
{
    const auto maps = backward_maps<Shape>(p);
    if (!maps) {
        return cudaErrorInvalidValue;
    }
    BackwardScratch scratch;
    place_scratch<Shape>(p, workspace, scratch);
    Schedule schedule = key_schedule(p, Shape::block_n);
    // Under a causal mask a key block begins with the query block of its own rows: the last one gets everywhere first.
    schedule.descending = has_band(p);
    // Without one, they all would begin with the first query block, and wait for one another to add to its dQ.
    schedule.rotates = !has_band(p) && !p.q.is_packed && 2 * schedule.blocks <= gpu.multiprocessors;
    const int in_cache = heads_in_cache(p, gpu, std::int64_t{p.seqlen_q} * p.heads_q / p.heads_kv);
    share_bias(p, schedule, schedule.rotates ? std::min(in_cache, gpu.multiprocessors / schedule.blocks) : in_cache);
    using Memory = BackwardMemory<Shape>;
    constexpr auto kernel = &hopper_backward_kernel<Shape>;
    if (const cudaError_t status = allow_memory<Memory, kernel>(gpu.device); status != cudaSuccess) {
        return status;
    }
    launch_rows<Shape>(p, scratch, stream);
    cudaLaunchConfig_t config{};
    config.gridDim = static_cast<unsigned>(persistent_blocks(schedule, gpu));
    config.blockDim = Shape::threads;
    config.dynamicSmemBytes = shared_bytes<Memory>;
    config.stream = stream;
    cudaLaunchAttribute together{}; // blocks wait for one another: none may be kept out by another stream's
    together.id = cudaLaunchAttributeCooperative;
    together.val.cooperative = 1;
    config.attrs = &together;
    config.numAttrs = 1;
    if (const cudaError_t status = cudaLaunchKernelEx(&config, kernel, p, *maps, schedule, scratch);
        status != cudaSuccess) {
        return status;
    }
    const std::int64_t tiles = std::int64_t{p.batch} * p.heads_q * scratch.blocks;
    hopper_dq_kernel<typename Shape::Plain><<<static_cast<unsigned>(tiles), 256, 0, stream>>>(p, scratch);
    return cudaGetLastError();
}

template <class Math, int depth, int block_m>
int launch_backward(BackwardShape<Math, depth, block_m> shape, const Params& p, void* workspace, cudaStream_t stream,
                    const Gpu& gpu)
{
    using Shape = decltype(shape);
    if (!p.is_modified) {
        return launch_once<Shape>(p, workspace, stream, gpu);
    }
    if constexpr (depth == 128) { // where for_backward_shape() has a softcap
        if (p.softcap > 0.0F) {
            return launch_once<Modified<Shape, Softcap::alone>>(p, workspace, stream, gpu);
        }
    }
    return launch_once<Modified<Shape, Softcap::absent>>(p, workspace, stream, gpu);
}

/// dQ, and dK and dV after it.
template <class Queries, class Keys>
int launch_twice(const Params& p, void* workspace, cudaStream_t stream, const Gpu& gpu)
{
    static_assert(Queries::tile_rows == Keys::block_m);
    using QueryMemory = WideQueryMemory<Queries>;
    using KeyMemory = WideKeyMemory<Keys>;
    const auto query_maps = backward_maps<Queries>(p);
    const auto key_maps = backward_maps<Keys>(p);
    if (!query_maps || !key_maps) {
        return cudaErrorInvalidValue;
    }
    constexpr auto query_kernel = &wide_query_kernel<Queries>;
    constexpr auto key_kernel = &wide_key_kernel<Keys>;
    if (const cudaError_t status = allow_memory<QueryMemory, query_kernel>(gpu.device); status != cudaSuccess) {
        return status;
    }
    if (const cudaError_t status = allow_memory<KeyMemory, key_kernel>(gpu.device); status != cudaSuccess) {
        return status;
    }
    BackwardScratch scratch;
    place_scratch<Keys>(p, workspace, scratch);
    const Schedule queries = query_schedule(p, gpu, Queries::block_m);
    Schedule keys = key_schedule(p, Keys::block_n);
    const int in_cache = heads_in_cache(p, gpu, std::int64_t{p.seqlen_q} * p.heads_q / p.heads_kv);
    keys.heads_together = has_band(p) ? in_cache : 1;
    share_bias(p, keys, in_cache);
    launch_rows<Keys>(p, scratch, stream);
    query_kernel<<<persistent_blocks(queries, gpu), Queries::threads, shared_bytes<QueryMemory>, stream>>>(
        p, *query_maps, queries, scratch);
    key_kernel<<<persistent_blocks(keys, gpu), Keys::threads, shared_bytes<KeyMemory>, stream>>>(p, *key_maps, keys,
                                                                                                 scratch);
    return cudaGetLastError();
}

template <class Math, int depth, int depth_v>
int launch_backward(WideKeyShape<Math, depth, depth_v>, const Params& p, void* workspace, cudaStream_t stream,
                    const Gpu& gpu)
{
    using Queries = WideQueryShape<Math, depth, depth_v>;
    using Keys = WideKeyShape<Math, depth, depth_v>;
    if (!p.is_modified) {
        return launch_twice<Queries, Keys>(p, workspace, stream, gpu);
    }
    const auto launch = [&]<Softcap softcap>() {
        return launch_twice<Modified<Queries, softcap>, Modified<Keys, softcap>>(p, workspace, stream, gpu);
    };
    return p.softcap > 0.0F ? launch.template operator()<Softcap::alone>()
                            : launch.template operator()<Softcap::absent>();
}

/// Whether the backward pass is in two parts.
bool is_wide(const Params& p)
{
    return std::max(p.head_dim, p.head_dim_v) > 128;
}

/// Calls f(Shape{}) for the shape that a backward pass takes; that of its dK/dV part where it has two.
template <class Math, class F>
auto for_backward_shape(const Params& p, const F& f)
{
    if (!is_wide(p)) {
        // A softcap has too few registers, and a bias no room, where blocks have 128 queries.
        const bool is_small = std::max(p.head_dim, p.head_dim_v) <= 64 && p.softcap == 0.0F && p.bias.data == nullptr;
        return is_small ? f(BackwardShape<Math, 64, 128>{}) : f(BackwardShape<Math, 128, 64>{});
    }
    return p.head_dim <= 192 && p.head_dim_v <= 128 ? f(WideKeyShape<Math, 192, 128>{})
                                                    : f(WideKeyShape<Math, 256, 256>{});
}
template <class F>
auto for_backward_shape(const Params& p, const F& f)
{
    return p.element == Element::bfloat16 ? for_backward_shape<ptx::BFloat16Math>(p, f)
                                          : for_backward_shape<ptx::Float16Math>(p, f);
}

/// Of a forward pass: queries stay.
template <class Shape>
HopperBlocks blocks_of(Shape /*shape*/)
{
    return {Shape::block_m, Shape::block_n, Shape::threads / 32, Shape::depth, Shape::depth_v, Shape::stages};
}

template <class Math, int depth, int block_m>
HopperBlocks backward_blocks(Pass /*pass*/, BackwardShape<Math, depth, block_m> /*shape*/)
{
    using Shape = BackwardShape<Math, depth, block_m>;
    return {Shape::block_n, Shape::block_m, Shape::threads / 32, depth, depth, Shape::stages, true};
}

template <class Math, int depth, int depth_v>
HopperBlocks backward_blocks(Pass pass, WideKeyShape<Math, depth, depth_v> /*shape*/)
{
    using Queries = WideQueryShape<Math, depth, depth_v>;
    using Keys = WideKeyShape<Math, depth, depth_v>;
    return pass == Pass::backward_query
               ? HopperBlocks{Queries::block_m, Queries::block_n, Queries::threads / 32, depth, depth_v, 0}
               : HopperBlocks{Keys::block_n, Keys::block_m, Keys::threads / 32, depth, depth_v, Keys::stages};
}

} // namespace

bool float8_supports(const Params& p)
{
    return can_bring(p, 1) && !p.is_modified && !p.q.is_packed && std::max(p.head_dim, p.head_dim_v) <= 128;
}

std::int64_t float8_workspace_bytes(const Params& p)
{
    return counter_bytes + std::int64_t{p.batch} * p.heads_kv * p.head_dim_v * transposed_blocks(p) * transposed_keys;
}

HopperBlocks float8_blocks(const Params& p)
{
    return for_float8_shape(p, [](auto shape) { return blocks_of(shape); });
}

int run_float8(const StreamCall& call)
{
    const auto scale = [](const offload::RowTensor& tensor) { return HeadScale{tensor.data, tensor.batch}; };
    const HeadScales factors{scale(call.scales.q), scale(call.scales.k), scale(call.scales.v)};
    return for_float8_shape(call.params, [&](auto shape) {
        return launch_float8<decltype(shape)>(call.params, factors, call.workspace,
                                              static_cast<cudaStream_t>(call.stream), call.gpu);
    });
}

bool hopper_supports(Pass pass, const Params& p)
{
    const bool is_16_bit = p.element == Element::bfloat16 || p.element == Element::float16;
    if (!is_16_bit || !can_bring(p, 2)) {
        return false;
    }
    if (pass == Pass::forward) {
        return !p.is_modified || can_modify(p);
    }
    if (p.is_modified && !can_modify_backward(p)) {
        return false;
    }
    if (pass == Pass::backward_key) {
        return is_wide(p) && hopper_supports(Pass::backward_query, p);
    }
    // The wide kernels, and other machines', sum P∘dP before they compute dK, and so correct D, which shows in a dbias
    // that is a sum over keys or queries, or float32. Of packed sequences the longest counts.
    const bool is_sum = p.dbias.query == 0 || p.dbias.key == 0;
    const bool may_keep_d =
        (p.dbias.data == nullptr || (!is_sum && p.dbias.element != Element::float32)) &&
        offload::may_keep_delta(offload::band_of(p, {0, 0, p.seqlen_q, p.seqlen_k}), p.dsink != nullptr);
    return pass == Pass::backward_query && (is_wide(p) || may_keep_d) && is_whole(p.dout, extent_q(p, p.head_dim_v)) &&
           is_whole(p.dq, extent_q(p, p.head_dim)) && is_whole(p.dk, extent_k(p, p.head_dim)) &&
           is_whole(p.dv, extent_k(p, p.head_dim_v));
}

std::int64_t hopper_workspace_bytes(Pass pass, const Params& params)
{
    if (pass == Pass::forward) {
        return counter_bytes;
    }
    return for_backward_shape(params, [&](auto shape) {
        BackwardScratch scratch;
        return place_scratch<decltype(shape)>(params, nullptr, scratch);
    });
}

HopperBlocks hopper_blocks(Pass pass, const Params& params)
{
    return pass == Pass::forward
               ? for_forward_shape(params, [](auto shape) { return blocks_of(shape); })
               : for_backward_shape(params, [pass](auto shape) { return backward_blocks(pass, shape); });
}

int run_hopper(const StreamCall& call)
{
    auto* const stream = static_cast<cudaStream_t>(call.stream);
    if (call.launch.pass == Pass::forward) {
        return for_forward_shape(call.params, [&](auto shape) {
            return launch_forward<decltype(shape)>(call.params, static_cast<unsigned*>(call.workspace), stream,
                                                   call.gpu);
        });
    }
    if (call.launch.pass == Pass::backward_key) {
        return cudaSuccess; // launched after dQ, whose row statistics it reads
    }
    return for_backward_shape(
        call.params, [&](auto shape) { return launch_backward(shape, call.params, call.workspace, stream, call.gpu); });
}

} // namespace flashomp::cuda
