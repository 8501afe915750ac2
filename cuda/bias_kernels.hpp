// The pass of dbias with Hopper's warpgroup products (sm_90a only): called on devices of compute capability 9.0.
#pragma once

#include "hopper_kernels.hpp"

namespace flashomp::cuda {

/// As hopper_supports(), hopper_blocks() and run_hopper() for Pass::backward_bias, which needs no workspace.
bool bias_supports(const offload::Params& params);
HopperBlocks bias_blocks(const offload::Params& params);
int run_bias(const StreamCall& call);

} // namespace flashomp::cuda
