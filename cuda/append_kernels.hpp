// Launching append() as a CUDA kernel: mirrors offload/launch/launch_append.hpp. The result is a cudaError_t, 0 for
// success.
#pragma once

#include "algorithm/append.hpp"

namespace flashomp::cuda {

/// On the current device; `stream` is a cudaStream_t.
int run_append(const offload::AppendParams& params, void* stream);

} // namespace flashomp::cuda
