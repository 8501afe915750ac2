// Block shapes of the tensor-core machine under CUDA: mirrors offload/launch/tensor_shapes.hpp, with what a block may
// have here and a team may not: more than 48 KB of shared memory, and all 255 registers without a stack for what calls
// it.
#pragma once

#include "launch/tensor_shapes.hpp"

namespace flashomp::cuda {

using offload::Operands;
using offload::Pass;
using offload::TensorShape;

/// Whether dK and dV are summed by a kernel each: at depth 256 their accumulators would take all registers.
constexpr bool sums_apart(Pass pass, int depth)
{
    return pass == Pass::backward_key && depth == 256;
}

/// kernel_shape() of float32. Elements take twice the memory, so that more of what is there is resident blocks', and
/// mostly two blocks of few warps share a multiprocessor.
constexpr TensorShape tf32_shape(Pass pass, int depth)
{
    switch (pass) {
    case Pass::forward:
        return depth == 64    ? TensorShape{2, 32, 4, 0}
               : depth == 128 ? TensorShape{1, 32, 4, 0}
                              : TensorShape{1, 16, 2, 0};
    case Pass::backward_query:
        return depth == 64    ? TensorShape{2, 32, 4, 0}
               : depth == 128 ? TensorShape{1, 16, 4, 0}
                              : TensorShape{1, 8, 2, 0};
    case Pass::backward_key:
        return depth == 64    ? TensorShape{1, 32, 4, 0}
               : depth == 128 ? TensorShape{1, 16, 4, 0}
                              : TensorShape{1, 8, 2, 0};
    case Pass::backward_bias:
    case Pass::backward_sink:
    case Pass::backward_start:
    case Pass::backward_once:
        break;
    }
    return {};
}

/// depth: 64, 128 or 256; modified: Params::is_modified; fragments == 0: there is no kernel. Where accumulators and
/// score tiles take most of a lane's 255 registers, resident blocks stay in shared memory. All shapes fit the 99 KB of
/// compute capability 8.6.
constexpr TensorShape kernel_shape(Operands operands, Pass pass, int depth, bool modified)
{
    if (operands == Operands::tf32) {
        return cuda::tf32_shape(pass, depth);
    }
    switch (pass) {
    case Pass::forward:
        return depth == 64    ? TensorShape{2, 64, 4, modified ? 0 : 2}
               : depth == 128 ? TensorShape{1, 64, 8}
                              : TensorShape{1, 32, 4, 0};
    case Pass::backward_query:
        return depth == 64 ? TensorShape{1, 64, 8} : depth == 128 ? TensorShape{1, 32, 8} : TensorShape{1, 16, 4, 0};
    case Pass::backward_key:
        return depth == 64    ? TensorShape{1, 64, 8, 0}
               : depth == 128 ? (modified ? TensorShape{1, 16, 4, 0} : TensorShape{1, 32, 8, 0})
                              : TensorShape{1, 16, 4, 0};
    case Pass::backward_bias:
    case Pass::backward_sink:
    case Pass::backward_start:
    case Pass::backward_once:
        break;
    }
    return {};
}

/// Shared memory of a block.
constexpr int tensor_shared_bytes(Operands operands, Pass pass, int depth, bool modified)
{
    return offload::tensor_bytes(kernel_shape(operands, pass, depth, modified), operands, pass, depth);
}

} // namespace flashomp::cuda
