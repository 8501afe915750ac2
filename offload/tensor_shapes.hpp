// Block shapes of the tensor-core machine: what one file of kernels is compiled for and what plan() may choose.
#pragma once

#include "launch.hpp"

namespace flashomp::offload {

/// Rows and columns of the tiles of a crew. Registers decide: a lane has 255, and a multiprocessor holds 8 such warps.
/// 16·fragments rows of accumulators, resident operands and two score tiles must fit.
struct TensorShape {
    int fragments;   ///< a warp's resident rows, in 16
    int stream_rows; ///< two stages of two streamed blocks must fit team memory
    int warps;
    int in_registers = 2; ///< resident blocks that stay in registers; the others stay in team memory
    // Hopper:
    bool defers = false; ///< sums are computed behind the next block's scores
    int lead = 1;        ///< so many blocks for scores are on their way while one is at work
    int sums_lead = 0;   ///< the same for blocks that are only summed; 0: there are none

    [[nodiscard]] constexpr int resident_rows() const { return 16 * fragments * warps; }
};

/// depth: 64, 128 or 256; modified: has_modifications(). fragments == 0: there is no kernel.
///
/// What does not fit the registers goes to a stack, of which CUDA gives a lane 1 KB by default and libgomp asks for no
/// more: at depth 128 the modified dK/dV pass, two accumulators and Philox, would need more with its callers.
constexpr TensorShape tensor_shape(Pass pass, int depth, bool modified)
{
    switch (pass) {
    case Pass::forward:
        return depth == 64 ? TensorShape{2, 64, 4} : (depth == 128 ? TensorShape{1, 32, 8} : TensorShape{1, 16, 4});
    case Pass::backward_query:
        return depth == 64 ? TensorShape{1, 64, 8} : (depth == 128 ? TensorShape{1, 32, 8} : TensorShape{0, 0, 0});
    case Pass::backward_key:
        if (depth == 128 && modified) {
            return {0, 0, 0};
        }
        return depth == 64 ? TensorShape{1, 64, 8} : (depth == 128 ? TensorShape{1, 16, 4, 1} : TensorShape{0, 0, 0});
    case Pass::backward_bias:
    case Pass::backward_sink:
        break;
    }
    return {0, 0, 0};
}

/// The same for warpgroup products, whose right operands need no registers.
constexpr TensorShape hopper_shape(Pass pass, int depth, bool modified)
{
    if (depth > 128) {
        return {0, 0, 0};
    }
    switch (pass) {
    case Pass::forward:
        return depth == 64 ? TensorShape{2, 48, 4, 2, true, 2, 2} : TensorShape{1, 32, 4, 2, true, 2, 1};
    case Pass::backward_query:
        return depth == 64 ? TensorShape{1, 64, 4, 2, true} : TensorShape{1, 32, 4, 2, true};
    case Pass::backward_key:
        if (depth == 128 && modified) { // would need more stack than there is
            return {0, 0, 0};
        }
        return depth == 64 ? TensorShape{1, 64, 4} : TensorShape{1, 32, 4};
    case Pass::backward_bias:
    case Pass::backward_sink:
        break;
    }
    return {0, 0, 0};
}

/// run_tensor() or run_hopper() for one depth.
template <int depth>
Ran run_tensor_depth(const Params& params, const Launch& launch);

} // namespace flashomp::offload
