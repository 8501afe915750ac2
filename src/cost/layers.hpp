// What training a stack of transformer layers keeps in memory, with and without tiles and checkpoints.
#pragma once

#include "shape.hpp"

#include <string_view>
#include <vector>

namespace flashomp::cost {

/// What the layers of a model keep of attention for the backward pass, in bytes.
struct ModelSaved {
    std::int64_t seqlen = 0;
    double standard_per_head = 0;        ///< P of one head of one layer
    double maximum_and_sum_per_head = 0; ///< m and ℓ of it
    double lse_per_head = 0;             ///< here
    double standard = 0;                 ///< all layers, heads and batch entries
    double maximum_and_sum = 0;
    double lse = 0;
};

/// One line for each sequence length; the other sizes are the shape's.
[[nodiscard]] std::vector<ModelSaved> model_table(const Shape& shape, DType dtype, std::int64_t layers,
                                                  const std::vector<std::int64_t>& seqlens);

/// One way to save memory in a stack of layers.
///
/// For sequence length s, batch b, hidden size h = heads·head_dim, a heads, activations in 16 bits with dropout masks
/// of one byte (Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer Models", section 4):
///
///     none         every layer keeps 34·s·b·h + 5·a·s²·b bytes
///     flash        34·s·b·h + 4·a·s·b: the three matrices of attention become LSE
///     checkpoint   2·s·b·h, its input; the backward pass runs the layer again, and one layer at a time is whole
///     both         2·s·b·h; the layer that is whole is flash's
///
/// FLOPs of a layer: forward 24·b·s·h² + 4·b·s²·h, backward twice that; flash adds one product QKᵀ to the backward
/// pass, 2·b·s²·h; a checkpoint adds a forward pass.
struct Checkpointing {
    std::string_view name;
    double layer_bytes = 0; ///< kept by each layer from its forward to its backward pass
    double peak_bytes = 0;  ///< of all layers, when the backward pass begins: kept, and the one layer that is whole
    double flops = 0;       ///< forward and backward of all layers
    double extra_flops = 0; ///< above `none`, as a fraction
};

/// none, flash, checkpoint, both. Throws Error unless queries and keys have the same length and heads (the formulas are
/// for that case).
[[nodiscard]] std::vector<Checkpointing> checkpointing(const Shape& shape, std::int64_t layers);

} // namespace flashomp::cost
