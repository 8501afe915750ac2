// The masks of a problem, for who asks which rows see which.
#pragma once

#include "mask.hpp"
#include "problem.hpp"

namespace flashomp {

/// The band of one of its sequences.
inline offload::Band band_of(const Problem& problem, int q_len, int k_len)
{
    offload::Params p;
    p.causal = static_cast<offload::Alignment>(problem.causal);
    p.window_left = problem.window.left;
    p.window_right = problem.window.right;
    return offload::band_of(p, {0, 0, q_len, k_len});
}

} // namespace flashomp
