#include "cuda_passes.hpp"
#include "dispatch.hpp"
#include "host_threads.hpp"
#include "openmp_passes.hpp"
#include "option_list.hpp"
#include "place.hpp"
#include "staging.hpp"
#include "workspace.hpp"

#include <chrono>
#include <fmt/format.h>
#include <span>
#include <string_view>
#include <utility>

namespace flashomp {

namespace {

using Clock = std::chrono::steady_clock;

ConstTensorView view_of(const std::vector<std::int32_t>& values)
{
    return values.empty() ? ConstTensorView{} : ConstTensorView::contiguous(std::span(values), {std::ssize(values)});
}

/// Calls f(name, view) for each tensor that kernels read; absent ones have rank 0.
template <class F>
void each_read(const AppendProblem& append, F f)
{
    f("k", append.args.k);
    f("v", append.args.v);
    f("q", append.args.q);
    f("rotary.cos", append.args.rotary.cos);
    f("rotary.sin", append.args.rotary.sin);
    for (const TensorOption& option : tensor_options) {
        if (option.is_of_cache || option.is_also_of_cache) {
            f(option.name, append.cache.options.*option.member);
        }
    }
    for (const auto* const values : {&append.starts_k, &append.starts_q, &append.places}) {
        f("", view_of(*values)); // of the call itself
    }
}

/// A cache is written where it is: to copy it to a device and back would take longer than all else.
Options where_the_cache_is(Options options, const TensorView& cache)
{
    if (cache.memory == Memory::host && options.device.kind == Device::Kind::automatic &&
        options.backend != Backend::cuda) {
        options.device.kind = Device::Kind::host;
    }
    return options;
}

const std::int32_t* int32s(const ConstTensorView& view)
{
    return view ? static_cast<const std::int32_t*>(view.data) : nullptr;
}

offload::Tensor given(const ConstTensorView& view)
{
    return view ? kernel_tensor(view) : offload::Tensor{};
}

offload::AppendParams append_params(const AppendProblem& append, Staging& staging)
{
    const AppendArgs& args = append.args;
    offload::AppendParams p;
    p.batch = static_cast<int>(append.cache.batch);
    p.heads_kv = static_cast<int>(append.cache.heads_kv);
    p.rows = static_cast<int>(append.rows);
    p.rows_q = static_cast<int>(append.rows_q);
    p.head_dim = static_cast<int>(append.cache.head_dim);
    p.head_dim_v = static_cast<int>(append.cache.head_dim_v); // 0 without v: rows of no elements
    p.element = kernel_element(args.k.dtype);
    p.k = given(staging.input(args.k));
    p.v = given(staging.input(args.v));
    p.k_cache = kernel_tensor(args.k_cache);
    p.v_cache = given(args.v_cache);
    if (args.q) {
        p.heads_q = static_cast<int>(args.q.shape.at(static_cast<std::size_t>(args.q.rank - 2)));
        p.q = given(staging.input(args.q));
        p.q_out = given(staging.output(args.q_out));
    }
    p.cu_seqlens_k = int32s(staging.input(view_of(append.starts_k)));
    p.cu_seqlens_q = int32s(staging.input(view_of(append.starts_q)));
    p.places = int32s(staging.input(view_of(append.places)));
    p.cache = cache_tables(append.cache, staging, {});
    if (const Rotary& rotary = args.rotary; rotary.cos) {
        const ConstTensorView cos = staging.input(rotary.cos);
        const ConstTensorView sin = staging.input(rotary.sin);
        p.pairs = static_cast<int>(rotary.cos.shape[1]);
        p.angle_element = kernel_element(cos.dtype);
        p.cos = cos.data;
        p.sin = sin.data;
        p.cos_stride = cos.strides[0];
        p.sin_stride = sin.strides[0];
        p.is_interleaved = rotary.interleaved;
    }
    const Options& options = append.cache.options;
    p.q_moves = options.causal != Causal::none || options.window.left >= 0 || options.window.right >= 0;
    return p;
}

} // namespace

Report run_append(const AppendProblem& append)
{
    const Options options = where_the_cache_is(append.cache.options, append.args.k_cache);
    const Place place = choose_place(options);
    const Space space = space_of(place.hardware, options);
    StagingBytes bytes;
    each_read(append, [&](const char* name, const ConstTensorView& view) {
        check_memory(view, name, place, space.is_asynchronous, std::string_view(name).empty() || is_read_on_host(name));
        bytes.add(view, space);
    });
    check_memory(append.args.q_out, "q_out", place, space.is_asynchronous);
    bytes.add(append.args.q_out, space);
    for (const auto& [name, view] :
         {std::pair{"k_cache", append.args.k_cache}, std::pair{"v_cache", append.args.v_cache}}) {
        check_memory(view, name, place, space.is_asynchronous);
        if (view && !space.is_host() && view.memory == Memory::host) {
            throw Error(
                fmt::format("{} is in host memory, but the call runs on {}; a cache must be where the call runs.", name,
                            place.name));
        }
    }
    const auto start = Clock::now();
    wait_before(space);
    const Workspace copies(bytes.memory, space);
    const Workspace gathered(bytes.gathered, Space{});
    Staging staging(space, copies.data(), bytes, gathered.data());
    const offload::AppendParams params = append_params(append, staging);
    const std::int64_t units = offload::append_units(params);
    const bool is_cuda = place.hardware.backend == Backend::cuda;
    const int threads = host_threads(place.hardware.threads, units);
    offload::Ran ran{true};
    if (units > 0) {
        ran = is_cuda ? run_cuda_append(params, place, options)
                      : run_openmp_append(params, place.hardware, space, threads);
        expect_where_sent(place, ran.on_device);
    }
    if (!space.is_asynchronous) {
        wait_for(space);
    }
    staging.finish();

    Report report;
    report.backend = is_cuda ? "cuda" : "openmp";
    report.machine = "plain";
    report.on_device = place.hardware.is_device && ran.on_device;
    report.ran_on = place.hardware.is_device ? place.name : host_name(threads);
    report.note = place.note;
    report.seconds = std::chrono::duration<double>(Clock::now() - start).count();
    report.staged_bytes = bytes.tensors;
    return report;
}

} // namespace flashomp
