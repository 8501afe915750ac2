// The kernels of standard attention on a GPU that are not matrix products; plain C++ for whoever launches them.
#pragma once

#include "algorithm/params.hpp"

#include <cstdint>

namespace flashomp::bench {

/// Matrices [query][key] of all heads, one after the other: of the query heads that are first in their groups, then of
/// the second ones, and so on, each [batch][key head]. So those that share no key head are neighbours.
struct ScoreMatrices {
    std::int64_t batch, heads_q, heads_kv, rows, columns;
    offload::Element element;
    bool is_causal;
    std::int64_t shift; ///< row i sees the keys up to i + shift

    [[nodiscard]] std::int64_t count() const { return batch * heads_q; }
};

/// p = softmax(s) of every row and its LSE [batch, heads_q, rows]. A cudaError_t.
int launch_softmax(const ScoreMatrices& shape, const void* s, void* p, float* lse);

/// ds = p∘(dp - rowsum(p∘dp)). A cudaError_t.
int launch_softmax_gradient(const ScoreMatrices& shape, const void* p, const void* dp, void* ds);

} // namespace flashomp::bench
