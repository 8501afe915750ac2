#include "cuda_passes.hpp"
#include "dispatch.hpp"
#include "host_threads.hpp"
#include "openmp_passes.hpp"
#include "place.hpp"
#include "staging.hpp"
#include "workspace.hpp"

#include <chrono>

namespace flashomp {

namespace {

using Clock = std::chrono::steady_clock;

offload::MergePart merge_part(const Partial& part, Staging& staging)
{
    const ConstTensorView o = staging.input(part.o);
    const ConstTensorView lse = staging.input(part.lse);
    return {kernel_tensor(o), kernel_rows(lse), kernel_element(o.dtype)};
}

} // namespace

Report run_merge(const Partial& a, const Partial& b, const TensorView& o, const TensorView& lse, const Options& options)
{
    const Place place = choose_place(options);
    const Space space = space_of(place.hardware, options);
    StagingBytes bytes;
    for (const auto& [name, view] : std::initializer_list<std::pair<const char*, ConstTensorView>>{
             {"a.o", a.o}, {"a.lse", a.lse}, {"b.o", b.o}, {"b.lse", b.lse}, {"o", o}, {"lse", lse}}) {
        check_memory(view, name, place, space.is_asynchronous);
        bytes.add(view, space);
    }
    const auto start = Clock::now();
    wait_before(space);
    const Workspace copies(bytes.memory, space);
    const Workspace gathered(bytes.gathered, Space{});
    Staging staging(space, copies.data(), bytes, gathered.data());
    const bool packed = lse.rank == 2;
    offload::MergeParams params;
    params.parts = 2;
    params.part[0] = merge_part(a, staging);
    params.part[1] = merge_part(b, staging);
    params.batch = packed ? 1 : static_cast<int>(lse.shape[0]);
    params.heads = static_cast<int>(lse.shape[packed ? 0 : 1]);
    params.length = static_cast<int>(lse.shape[packed ? 1 : 2]);
    params.depth = static_cast<int>(o.shape[packed ? 2 : 3]);
    const TensorView o_there = staging.output(o);
    params.o = kernel_tensor(o_there);
    params.lse = kernel_rows(staging.output(lse));
    params.element = kernel_element(o.dtype);
    const bool is_cuda = place.hardware.backend == Backend::cuda;
    const offload::Ran ran =
        is_cuda ? run_cuda_merge(params, place, options) : run_openmp_merge(params, place.hardware, space);
    expect_where_sent(place, ran.on_device);
    if (!space.is_asynchronous) {
        wait_for(space);
    }
    staging.finish();

    Report report;
    report.backend = is_cuda ? "cuda" : "openmp";
    report.machine = "plain";
    report.on_device = ran.on_device;
    report.ran_on = place.hardware.is_device
                        ? place.name
                        : host_name(host_threads(place.hardware.threads, offload::merge_units(params)));
    report.note = place.note;
    report.seconds = std::chrono::duration<double>(Clock::now() - start).count();
    report.staged_bytes = bytes.tensors;
    return report;
}

} // namespace flashomp
