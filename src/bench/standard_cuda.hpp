// Standard attention on a GPU: two matrix products of cuBLAS and a softmax, with S and P of all heads whole. The only
// place where a library's kernels are called, and only to be set beside flashomp's.
#pragma once

#include "space.hpp"
#include "standard.hpp"

#include <memory>

namespace flashomp::bench {

/// In the dtype of the inputs, sums in float32, as PyTorch computes it. Reads and writes the device tensors of `bench`,
/// which lives at least as long. Null in builds without CUDA. Throws NotBuilt for packed sequences and Error where
/// cuBLAS is not installed.
[[nodiscard]] std::unique_ptr<Standard> make_standard_cuda(BenchCase& bench, const Space& space);

} // namespace flashomp::bench
