// The passes over few queries on a GPU's tensor cores (offload/nvidia/few_queries_crew.hpp): for which calls, and how
// heads and keys are shared out.
#pragma once

#include "plan.hpp"

namespace flashomp {

/// What would have to hold for the kernels to run a pass, where they are there; empty: they can. Of backward_query they
/// do dK and dV, too.
[[nodiscard]] std::string few_forward_obstacle(offload::Pass pass, const Problem& problem, const Hardware& hardware);
[[nodiscard]] std::string few_backward_obstacle(offload::Pass pass, const Problem& problem, const Hardware& hardware);

/// A block is queries of several heads of a group; what keys it sees may be cut into parts (split_count()).
[[nodiscard]] offload::Launch few_forward_launch(offload::Pass pass, const Problem& problem, const Hardware& hardware);
/// Parts of the keys of so many blocks, whose last crews put them together.
[[nodiscard]] int few_forward_parts(std::int64_t blocks, const Problem& problem, const Hardware& hardware);

/// A block is a part of the keys, for all queries of the heads that share them.
[[nodiscard]] offload::Launch few_backward_launch(offload::Pass pass, const Problem& problem, const Hardware& hardware);

/// Bytes of dQ's sums of all parts.
[[nodiscard]] std::int64_t few_backward_bytes(offload::Pass pass, const Problem& problem, const Hardware& hardware);

} // namespace flashomp
