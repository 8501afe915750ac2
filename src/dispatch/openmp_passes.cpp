#include "openmp_passes.hpp"

#include "host_threads.hpp"
#include "registry.hpp"
#include "workspace.hpp"

#include "launch/launch_append.hpp"
#include "launch/launch_elements.hpp"

#include "flashomp/error.hpp"

#include <algorithm>
#include <cstddef>
#include <fmt/format.h>

namespace flashomp {

namespace {

offload::Ran run_pass(const Plan& plan, const PassPlan& pass, const offload::Call& here, offload::Call* there)
{
    const auto run_region = pass.kernel->run_region;
    if (run_region != nullptr) {
        return plan.own_score != nullptr ? plan.own_score->run_plain(here, there) : run_region(here, there);
    }
    return pass.isa->run(there->params, there->launch);
}

offload::Ran merge(const offload::MergeParams& here, const offload::MergeParams* there, const Hardware& hardware,
                   int most_threads)
{
    return hardware.is_device ? offload::run_merge(there, offload::merge_units(here), hardware.device)
                              : hardware.isa->merge(here, host_threads(most_threads, offload::merge_units(here)));
}

/// Calls run(pass, here, there) for each pass, then merges.
template <class F>
offload::Ran run_all(const Plan& plan, Calls& calls, const Hardware& hardware, int most_threads, F run)
{
    offload::Ran all{hardware.is_device};
    const auto count = [&all](const offload::Ran& ran) {
        if (ran.failure != 0) {
            throw RunFailure(fmt::format("a kernel on the GPU failed, with the CUDA driver's error {}.", ran.failure));
        }
        all.on_device = all.on_device && ran.on_device;
        all.all_is_finite = all.all_is_finite && ran.all_is_finite;
    };
    for (std::size_t i = 0; i < plan.passes.size(); ++i) {
        const offload::Call& here = calls.here(i);
        if (here.params.mask.tiles != nullptr && !hardware.is_device) { // there run_masked() does it
            offload::fill_tiles(here.params, here.launch, std::max(1, most_threads));
        }
        count(run(plan.passes[i], calls.here(i), calls.there(i)));
    }
    if (plan.merges) {
        count(merge(calls.merge_here(), calls.merge_there(), hardware, most_threads));
    }
    return all;
}

} // namespace

offload::Ran run_openmp_passes(const Plan& plan, Calls& calls, const Hardware& hardware, int most_threads)
{
    return run_all(plan, calls, hardware, most_threads,
                   [&plan](const PassPlan& pass, const offload::Call& here, offload::Call* there) {
                       return run_pass(plan, pass, here, there);
                   });
}

offload::Ran run_openmp_visible(const Plan& plan, Calls& calls, const Hardware& hardware, int most_threads)
{
    if (plan.own_score != nullptr) {
        return run_all(plan, calls, hardware, most_threads,
                       [&plan](const PassPlan&, const offload::Call& here, offload::Call* there) {
                           return plan.own_score->run_visible(here, there);
                       });
    }
    const int depth = plan.passes.front().launch.depth;
    if (!offload::has_visible_machine(depth)) {
        throw RunFailure(
            fmt::format("a result is not finite, and the library that computes such calls anew, libflashomp_{}, is "
                        "not beside libflashomp or cannot be loaded.",
                        depth > offload::most_plain_depth ? "sliced" : "visible"));
    }
    return run_all(plan, calls, hardware, most_threads,
                   [](const PassPlan&, const offload::Call& here, offload::Call* there) {
                       return offload::run_visible(here, there);
                   });
}

offload::Ran run_openmp_merge(const offload::MergeParams& params, const Hardware& hardware, const Space& space)
{
    if (space.is_host()) {
        return merge(params, &params, hardware, hardware.threads);
    }
    const Workspace there(sizeof params, space);
    copy_in(there.data(), space, &params, sizeof params);
    return merge(params, static_cast<const offload::MergeParams*>(there.data()), hardware, hardware.threads);
}

offload::Ran run_openmp_append(const offload::AppendParams& params, const Hardware& hardware, const Space& space,
                               int threads)
{
    if (space.is_host()) {
        return offload::append(params, threads);
    }
    const Workspace there(sizeof params, space);
    copy_in(there.data(), space, &params, sizeof params);
    return offload::run_append(static_cast<const offload::AppendParams*>(there.data()), offload::append_units(params),
                               hardware.device);
}

offload::Ran run_openmp_elements(const offload::ElementsParams& params, const Hardware& hardware, const Space& space,
                                 int threads)
{
    if (space.is_host()) {
        return offload::elements(params, threads);
    }
    const Workspace there(sizeof params, space);
    copy_in(there.data(), space, &params, sizeof params);
    return offload::run_elements(static_cast<const offload::ElementsParams*>(there.data()),
                                 offload::elements_units(params), hardware.device);
}

} // namespace flashomp
