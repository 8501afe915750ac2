// The CUDA backend's part of a call: all its kernels on one stream, none of which is waited for here.
#pragma once

#include "kernel_params.hpp"
#include "place.hpp"
#include "plan.hpp"
#include "problem.hpp"

#include "algorithm/append.hpp"
#include "algorithm/elements.hpp"

#include "flashomp/error.hpp"

namespace flashomp {

/// Launches the passes of the plan and the merge of split keys, with so much memory for the crews as the plan says;
/// arrivals: plan.merged_blocks counters, all 0 when the kernels' turn comes. Throws RunFailure where a launch fails.
void run_cuda_passes(const Plan& plan, const Problem& problem, const offload::Params& params, const Place& place,
                     const Space& space, Tensors& tensors, void* crew_memory, unsigned* arrivals);

/// Computes results anew on the plain machine whose sums leave out hidden pairs; with `only_if`, a word on the device,
/// where that is not 0 when the kernels' turn comes. Throws RunFailure where a launch fails.
void run_cuda_visible(const Plan& plan, const offload::Params& params, const Place& place, const Space& space,
                      const unsigned* only_if);

/// Launches a merge.
offload::Ran run_cuda_merge(const offload::MergeParams& params, const Place& place, const Options& options);

/// Runs an append() that has rows.
offload::Ran run_cuda_append(const offload::AppendParams& params, const Place& place, const Options& options);

/// Moves elements that there are from tensor to tensor.
offload::Ran run_cuda_elements(const offload::ElementsParams& params, const Place& place, const Space& space);

} // namespace flashomp
