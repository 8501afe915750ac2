// Small models for tests, and batches of random tokens for them.
#pragma once

#include "model.hpp"
#include "random.hpp"

#include <cstdint>
#include <vector>

namespace gpt::testing {

struct RandomBatch {
    std::vector<std::int32_t> tokens, targets;

    RandomBatch(const ModelShape& shape, Index batch, std::uint64_t seed)
    {
        for (Index i = 0; i < batch * shape.seqlen; ++i) {
            const auto draw = [&](std::uint64_t place) {
                const auto index = 2 * static_cast<std::uint64_t>(i) + place;
                return static_cast<std::int32_t>(random_bits(seed, Stream::batches, index) %
                                                 static_cast<std::uint64_t>(shape.vocabulary));
            };
            tokens.push_back(draw(0));
            targets.push_back(draw(1));
        }
    }

    [[nodiscard]] Batch view() const { return {tokens, targets}; }
};

/// Weights that are far from those of a new model: biases are not 0, norms not 1, and matrices large enough that
/// attention is not even.
template <class S>
void shake(Model<S>& model, std::uint64_t seed, double size)
{
    std::uint64_t index = 0;
    for (auto& weight : model.weights()) {
        weight += static_cast<Number<S>>(size * random_normal(seed, Stream::sampling, index++));
    }
}

} // namespace gpt::testing
