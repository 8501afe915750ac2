// What the tile machines are for a problem: block shapes, instruction sets, passes.
#pragma once

#include "launch/tensor_shapes.hpp"
#include "plan.hpp"

namespace flashomp {

/// Block shape of a tensor or Hopper kernel; no fragments: there is none.
offload::TensorShape shape_of(Machine machine, offload::Pass pass, const Problem& problem, const Hardware& hardware);

/// Whether the tensor machine sums dV and then dK.
bool sums_apart(offload::Pass pass, const Problem& problem, const Hardware& hardware);

/// The host instruction set of a problem: the best for its type, but for a backward pass, unless one was named, rather
/// one that has backward_once: vectors that compute five products are faster than AMX tiles that compute seven, in
/// float32 of six tile products each (docs/log/host-history.md, 20).
const offload::HostIsa& host_isa_of(const Problem& problem, const Hardware& hardware);

/// Whether one pass computes dQ, dK and dV.
bool takes_one_pass(const Problem& problem, const Hardware& hardware);

/// Whether none of o, dq, dk and dv is float32 where q is not.
bool has_results_like_q(const Problem& problem);

} // namespace flashomp
