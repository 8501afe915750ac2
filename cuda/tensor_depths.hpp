#pragma once

#include "block_shapes.hpp"
#include "kernels.hpp"

namespace flashomp::cuda {

/// run_tensor() for one kind of operands, depth and pass, each in a file of its own.
template <Operands operands, int depth, offload::Pass pass>
int run_tensor_pass(const offload::Params& params, const offload::Launch& launch, void* stream);

/// The same of calls with a mask, in 16 bits.
template <int depth, offload::Pass pass>
int run_masked_tensor_pass(const offload::Params& params, const offload::Launch& launch, void* stream);

} // namespace flashomp::cuda
