// The kernels of few queries (offload/nvidia/few_queries_forward.hpp, few_queries_backward.hpp), from sm_80. plan()
// says for which calls.
#pragma once

#include "hopper_kernels.hpp"

namespace flashomp::cuda {

/// Bytes of the workspace that come before dQ's sums: a counter for each key head of each sequence.
constexpr std::int64_t few_counter_bytes(std::int64_t key_heads)
{
    return (4 * key_heads + 127) / 128 * 128;
}

/// Launches the pass: forward, or backward_once for dq, dk and dv. As run_hopper().
int run_few(const StreamCall& call);

} // namespace flashomp::cuda
