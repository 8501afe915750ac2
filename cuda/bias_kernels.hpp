// The pass of dbias with Hopper's warpgroup products, a part of hopper_kernels.hpp compiled by itself.
#pragma once

#include "hopper_kernels.hpp"

namespace flashomp::cuda {

/// As hopper_supports(), hopper_blocks() and run_hopper() for Pass::backward_bias. It needs no workspace.
bool bias_supports(const offload::Params& params);
HopperBlocks bias_blocks(const offload::Params& params);
int run_bias(const StreamCall& call);

} // namespace flashomp::cuda
