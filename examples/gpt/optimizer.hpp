// AdamW, its learning rate, and clipping.
#pragma once

#include "parameters.hpp"

#include <cstdint>
#include <span>
#include <vector>

namespace gpt {

struct OptimizerOptions {
    double learning_rate = 1.5e-3; ///< the highest
    double last_rate = 0.1;        ///< of the highest, where the cosine ends: one step after the last
    std::int64_t warmup = 50;      ///< steps in which it rises
    double beta1 = 0.9, beta2 = 0.99, epsilon = 1e-8;
    double weight_decay = 0.1;
    double clip = 1.0; ///< the largest norm of all gradients; 0: any
};

/// Of step 0, 1, …: rises in a line to the highest in `warmup` steps, then falls as a half cosine to last_rate of that.
[[nodiscard]] double learning_rate(const OptimizerOptions& options, std::int64_t step, std::int64_t steps);

/// m ← β₁m + (1 − β₁)g, v ← β₂v + (1 − β₂)g², w ← w − η·(m̂/(√v̂ + ε) + λw) with m̂ = m/(1 − β₁ᵗ), v̂ = v/(1 − β₂ᵗ)
/// (Loshchilov and Hutter 2019). λ is 0 for what is no matrix. Of embeddings of n-grams, a step moves those alone that
/// its tokens look up, and their moments (as PyTorch's SparseAdam does): all of them would be most of a step's time.
template <class C>
class AdamW {
public:
    AdamW(const OptimizerOptions& options, const Layout& layout)
        : options_(options), layout_(layout), m_(static_cast<std::size_t>(layout.size())), v_(m_.size())
    {
    }

    /// Scales gradients whose norm is over the limit, and takes a step. `touched`: the rows of n-grams that it moves.
    /// Returns the norm that the gradients had.
    double step(Numbers<C>& weights, Numbers<C>& gradients, std::int64_t step, std::int64_t steps,
                std::span<const Index> touched = {});

    [[nodiscard]] Numbers<C>& m() { return m_; }
    [[nodiscard]] Numbers<C>& v() { return v_; }

private:
    OptimizerOptions options_;
    const Layout& layout_;
    Numbers<C> m_, v_;
};

} // namespace gpt
