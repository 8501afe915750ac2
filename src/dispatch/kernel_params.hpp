#pragma once

#include "params.hpp"
#include "problem.hpp"
#include "staging.hpp"

namespace flashomp {

/// The problem as the kernels see it, with host tensors staged. `rows` holds two floats for every LSE (backward
/// only): D and the residual.
offload::Params kernel_params(const Problem& problem, Staging& staging, float* rows);

} // namespace flashomp
