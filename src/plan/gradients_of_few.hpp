// All gradients of few queries in one pass on a GPU's tensor cores (offload/nvidia/few_queries.hpp): for which calls,
// and how the keys are shared out.
#pragma once

#include "plan.hpp"

namespace flashomp {

/// What would have to hold for the pass to do the gradients of a call, where its kernels are there; empty: it can.
[[nodiscard]] std::string obstacle_of_few(offload::Pass pass, const Problem& problem, const Hardware& hardware);

/// A block is a part of the keys, for all queries of the heads that share them.
[[nodiscard]] offload::Launch launch_of_few(offload::Pass pass, const Problem& problem, const Hardware& hardware);

/// Bytes of dQ's sums of all parts.
[[nodiscard]] std::int64_t bytes_of_few(offload::Pass pass, const Problem& problem, const Hardware& hardware);

} // namespace flashomp
