// Which tile machine runs a pass.
#pragma once

#include "plan.hpp"
#include "tensor_shapes.hpp"

namespace flashomp {

/// Block shape of a tensor or Hopper kernel; no fragments: there is none.
offload::TensorShape shape_of(Machine machine, offload::Pass pass, const Problem& problem, const Hardware& hardware);

/// Whether the tensor machine sums dV and then dK.
bool sums_apart(offload::Pass pass, const Problem& problem, const Hardware& hardware);

/// The machine of one pass. Throws Error when options.machine cannot run it on this hardware.
Machine machine_of(offload::Pass pass, const Problem& problem, const Hardware& hardware);

} // namespace flashomp
