#pragma once

#include "params.hpp"
#include "problem.hpp"
#include "staging.hpp"

namespace flashomp {

/// The problem as the kernels see it, with host tensors staged. `delta` is where D goes (backward only), laid out
/// like the LSE.
offload::Params kernel_params(const Problem& problem, Staging& staging, float* delta);

} // namespace flashomp
