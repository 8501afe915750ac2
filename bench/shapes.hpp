#pragma once

#include "flashomp/options.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace flashomp::bench {

struct Shape {
    std::int64_t batch = 1, heads_q = 1, heads_kv = 1, seqlen_q = 1, seqlen_k = 1, head_dim = 64, head_dim_v = 64;
    Causal causal = Causal::none;

    /// "b1_h4_n2048_d64", with what differs from the plain square case spelled out.
    [[nodiscard]] std::string name() const;
    /// Multiply-adds counted twice: 4·B·H·Nq·Nk·d, halved for causal; the backward pass is 2.5 times that
    /// (the convention of the FlashAttention papers).
    [[nodiscard]] double flops(bool backward) const;
};

/// The shapes of a file: one a line, # starts a comment. Throws Error naming the line that is not a shape.
std::vector<Shape> read_shapes(const std::string& path);

} // namespace flashomp::bench
