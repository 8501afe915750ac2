// What a shape costs in arithmetic, and what it keeps for the backward pass.
#pragma once

#include "plan.hpp"
#include "shape.hpp"

namespace flashomp::cost {

/// FLOPs, a multiply-add counted twice, of all heads. With d = head_dim = head_dim_v and full attention, a head has
/// 4·N²·d in the forward pass and 8·N²·d in the backward pass of standard attention; recomputing S = QKᵀ there makes
/// it 10·N²·d (Dao 2023, FlashAttention-2, section 3.1.2). Pairs that a mask hides do not count: a causal mask leaves
/// N·(N + 1)/2 pairs, for which those papers count N²/2.
struct Flops {
    double forward = 0;
    double standard_backward = 0; ///< dV, dP, dQ, dK
    double backward = 0;          ///< and S again: the count that speeds are quoted for

    /// What recomputation adds to the backward pass and to the whole, as fractions.
    [[nodiscard]] double extra_of_backward() const { return backward / standard_backward - 1.0; }
    [[nodiscard]] double extra_of_training() const
    {
        return (forward + backward) / (forward + standard_backward) - 1.0;
    }
};

[[nodiscard]] Flops flops(const Shape& shape);

/// FLOPs that one pass carries out for those pairs, products that another pass has computed before included. Two
/// backward passes without atomics have seven products, eight where dK and dV are summed apart; one pass has five.
[[nodiscard]] double pass_flops(const Shape& shape, const PassPlan& pass);

/// Pairs of a query and a key that the masks keep, of all sequences, for one head: those that count in flops().
[[nodiscard]] double counted_pairs(const Shape& shape);

/// Bytes that the backward pass finds from the forward pass besides q, k, v and o.
struct Saved {
    double standard = 0;          ///< P in the inputs' type (Dao et al. 2022, Algorithm 0), masked or not
    double lse = 0;               ///< here: one float32 a row
    double maximum_and_sum = 0;   ///< FlashAttention's first version: m and ℓ, two float32 a row
    double standard_per_head = 0; ///< of one batch entry and head; of packed sequences the longest
    double lse_per_head = 0;
    double maximum_and_sum_per_head = 0;
};

[[nodiscard]] Saved saved(const Shape& shape, DType dtype);

} // namespace flashomp::cost
