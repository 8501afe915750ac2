// Launching the copies of elements as a CUDA kernel: mirrors offload/launch/launch_elements.hpp. The result is a
// cudaError_t, 0 for success.
#pragma once

#include "algorithm/elements.hpp"

namespace flashomp::cuda {

/// On the current device; `stream` is a cudaStream_t.
int run_elements(const offload::ElementsParams& params, void* stream);

} // namespace flashomp::cuda
