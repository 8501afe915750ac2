// Block shapes of the tensor-core machine under CUDA: mirrors offload/launch/tensor_shapes.hpp, with what a block may
// have here and a team may not: more than 48 KB of shared memory, and all 255 registers without a stack for what calls
// it.
#pragma once

#include "launch/tensor_shapes.hpp"

namespace flashomp::cuda {

using offload::Operands;
using offload::Pass;
using offload::ShapesOfDepths;
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
    ShapesOfDepths shapes;
    if (pass == Pass::forward) {
        shapes = {.at_64 = {.fragments = 2, .stream_rows = 32, .warps = 4},
                  .at_128 = {.fragments = 1, .stream_rows = 32, .warps = 4},
                  .at_256 = {.fragments = 1, .stream_rows = 16, .warps = 2}};
    } else if (pass == Pass::backward_query || pass == Pass::backward_key) {
        shapes = {.at_64 = {.fragments = pass == Pass::backward_query ? 2 : 1, .stream_rows = 32, .warps = 4},
                  .at_128 = {.fragments = 1, .stream_rows = 16, .warps = 4},
                  .at_256 = {.fragments = 1, .stream_rows = 8, .warps = 2}};
    }
    TensorShape shape = shapes[depth];
    shape.in_registers = 0;
    return shape;
}

/// depth: 64, 128, 256 or 576; modified: Params::is_modified. Where accumulators and score tiles take most of a lane's
/// 255 registers, resident blocks stay in shared memory. All shapes fit the 99 KB of compute capability 8.6.
constexpr TensorShape kernel_shape(Operands operands, Pass pass, int depth, bool modified)
{
    if (operands == Operands::tf32) {
        return cuda::tf32_shape(pass, depth);
    }
    ShapesOfDepths shapes;
    if (pass == Pass::forward) {
        shapes = {.at_64 = {.fragments = 2, .stream_rows = 64, .warps = 4, .in_registers = modified ? 0 : 2},
                  .at_128 = {.fragments = 1, .stream_rows = 64, .warps = 8},
                  .at_256 = {.fragments = 1, .stream_rows = 32, .warps = 4, .in_registers = 0},
                  .at_576 = {.fragments = 1, .stream_rows = 16, .warps = 4, .in_registers = 0, .places = 2}};
    } else if (pass == Pass::backward_query) {
        shapes = {.at_64 = {.fragments = 1, .stream_rows = 64, .warps = 8},
                  .at_128 = {.fragments = 1, .stream_rows = 32, .warps = 8},
                  .at_256 = {.fragments = 1, .stream_rows = 16, .warps = 4, .in_registers = 0}};
    } else if (pass == Pass::backward_key) {
        shapes = {.at_64 = {.fragments = 1, .stream_rows = 64, .warps = 8, .in_registers = 0},
                  .at_128 = {.fragments = 1, .stream_rows = 32, .warps = 8, .in_registers = 0},
                  .at_256 = {.fragments = 1, .stream_rows = 16, .warps = 4, .in_registers = 0}};
        if (modified) {
            shapes.at_128 = shapes.at_256;
        }
    }
    return shapes[depth];
}

/// Shared memory of a block.
constexpr int tensor_shared_bytes(Operands operands, Pass pass, int depth, bool modified)
{
    return offload::tensor_bytes(kernel_shape(operands, pass, depth, modified), operands, pass, depth);
}

} // namespace flashomp::cuda
