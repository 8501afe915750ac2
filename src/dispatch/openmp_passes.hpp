// The OpenMP backend's part of a call: passes as target regions or on host threads, each of which has ended on return.
#pragma once

#include "calls.hpp"
#include "place.hpp"
#include "plan.hpp"

#include "algorithm/append.hpp"
#include "algorithm/elements.hpp"
#include "algorithm/merge.hpp"

namespace flashomp {

/// Runs the passes of the plan and the merge of split keys; on the host the merge has at most so many threads.
offload::Ran run_openmp_passes(const Plan& plan, Calls& calls, const Hardware& hardware, int most_threads);

/// The same on the plain machine whose sums leave out hidden pairs (offload/plain/visible_machine.hpp). Throws
/// RunFailure where its library is missing.
offload::Ran run_openmp_visible(const Plan& plan, Calls& calls, const Hardware& hardware, int most_threads);

/// Runs a merge of two parts.
offload::Ran run_openmp_merge(const offload::MergeParams& params, const Hardware& hardware, const Space& space);

/// Runs an append() that has rows; on the host with so many threads.
offload::Ran run_openmp_append(const offload::AppendParams& params, const Hardware& hardware, const Space& space,
                               int threads);

/// Moves elements that there are from tensor to tensor; on the host with so many threads.
offload::Ran run_openmp_elements(const offload::ElementsParams& params, const Hardware& hardware, const Space& space,
                                 int threads);

} // namespace flashomp
