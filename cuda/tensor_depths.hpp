#pragma once

#include "launch.hpp"

namespace flashomp::cuda {

/// run_tensor() for one depth and pass, each in a file of its own.
template <int depth, offload::Pass pass>
int run_tensor_pass(const offload::Params& params, const offload::Launch& launch, void* stream);

} // namespace flashomp::cuda
