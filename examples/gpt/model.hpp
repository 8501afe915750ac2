// The whole model: embeddings, layers, the last norm and the tied head, with what is kept and what is run again.
#pragma once

#include "attention.hpp"
#include "block.hpp"
#include "parameters.hpp"

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace gpt {

/// What the backward pass runs again instead of finding it in memory. Results have the same bits.
enum class Recompute : std::uint8_t {
    none,
    attention, ///< what attention keeps: P, or LSE (Korthikanti et al. 2022: selective recomputation)
    layer,     ///< everything of a layer but its input (Chen et al. 2016)
};

/// A batch: tokens and, one place further on in the text, targets, both [batch·seqlen].
struct Batch {
    std::span<const std::int32_t> tokens, targets;
};

template <class S>
class Model {
public:
    using C = Number<S>;

    /// `attention` lives at least as long.
    Model(const ModelShape& shape, std::uint64_t seed, Attention<S>& attention, Recompute recompute);

    /// The mean loss of the batch in nats a token; gradients() are its. Throws flashomp::RunFailure where memory ends.
    double train(const Batch& batch, const Drops& drops);

    /// −log p of every target, without dropout.
    [[nodiscard]] std::vector<double> evaluate(const Batch& batch);

    [[nodiscard]] const ModelShape& shape() const { return shape_; }
    [[nodiscard]] const Layout& layout() const { return layout_; }
    [[nodiscard]] Numbers<C>& weights() { return weights_; }
    [[nodiscard]] Numbers<C>& gradients() { return gradients_; }
    /// The rows of the n-grams' embeddings that the last train() looked up, in order, once each: the others have no
    /// gradient.
    [[nodiscard]] std::span<const Index> touched() const { return touched_; }

    /// Bytes that layers keep; its peak is that of the last train() or evaluate().
    [[nodiscard]] const Meter& kept() const { return kept_; }
    /// Seconds in attention since construction.
    [[nodiscard]] double attention_seconds() const { return attention_seconds_; }

private:
    Matrix<C> forward(const Batch& batch, const Drops& drops, bool keeps);
    void clear_gradients();
    void embed_backward(const Batch& batch, const Matrix<C>& dx);
    void attention_forward(LayerKept<S>& kept, const flashomp::Dropout& dropout, Meter& meter);
    [[nodiscard]] Heads heads(Index rows) const;

    ModelShape shape_;
    Layout layout_;
    std::vector<float> slopes_; ///< ALiBi's
    Numbers<C> weights_, gradients_;
    std::vector<Index> touched_;
    Attention<S>& attention_;
    Recompute recompute_;
    Meter kept_, other_; ///< of layers, and of the rest
    std::vector<LayerKept<S>> layers_;
    Kept<S> last_; ///< what the last layer wrote
    Kept<std::uint8_t> mask_;
    double attention_seconds_ = 0;
};

} // namespace gpt
