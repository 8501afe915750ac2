// All gradients of few queries in one kernel (offload/nvidia/few_queries.hpp), from sm_80.
#pragma once

#include "hopper_kernels.hpp"

namespace flashomp::cuda {

/// Whether the kernel does a backward pass: element type, depths, options, and how few queries there are.
bool few_supports(const offload::Params& params);

/// Bytes of device workspace: parts of dQ, and counters.
std::int64_t few_workspace_bytes(const offload::Params& params, int multiprocessors);

/// A crew's keys, all queries of a key head's group, and its warps.
HopperBlocks few_blocks(const offload::Params& params, int multiprocessors);

/// Launches it: dq, dk and dv. As run_hopper().
int run_few(const StreamCall& call);

} // namespace flashomp::cuda
