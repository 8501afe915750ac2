// Dropout of activations. Every draw depends on (seed, offset, row, column) alone, by flashomp's counters: a forward
// pass that is run again draws the same.
#pragma once

#include "matrix.hpp"

#include "flashomp/attention.hpp"

#include <cstdint>

namespace gpt {

/// The dropout of one step of training. Each place in the model has an offset of its own.
struct Drops {
    double probability = 0.0; ///< 0 in evaluation
    std::uint64_t seed = 0;
    std::uint64_t first_offset = 0;

    [[nodiscard]] flashomp::Dropout at(std::uint64_t place) const { return {probability, seed, first_offset + place}; }
};

/// Offsets that the places of a model take, in the order of the forward pass.
inline constexpr std::uint64_t places_per_layer = 3; ///< probabilities, attention's output, MLP's output
[[nodiscard]] inline std::uint64_t places_of_model(Index layers)
{
    return 1 + places_per_layer * static_cast<std::uint64_t>(layers);
}

/// 1 where an activation is kept, a byte each, [rows, columns]; nothing is kept in memory without dropout.
inline Kept<std::uint8_t> draw(const flashomp::Dropout& dropout, Index rows, Index columns, Meter& meter)
{
    if (dropout.probability == 0.0) {
        return {};
    }
    Kept<std::uint8_t> mask(meter, rows, columns);
    flashomp::dropout_mask(
        dropout, flashomp::TensorView::contiguous(mask.data(), flashomp::DType::boolean, {1, 1, rows, columns}));
    return mask;
}

/// y = x ∘ mask/(1 − p), on rows from `first`. Its backward pass is the same function of dy.
template <class Block>
void apply(const Kept<std::uint8_t>& mask, double probability, Index first, Block& x)
{
    using C = typename Block::Scalar;
    if (mask) {
        x.array() *=
            mask.rows().middleRows(first, x.rows()).template cast<C>().array() * static_cast<C>(1 / (1 - probability));
    }
}

} // namespace gpt
