// A validated attention problem: what the layers below validate() work on. Nothing here needs checking again.
#pragma once

#include "flashomp/attention.hpp"

#include <cstdint>
#include <utility>
#include <vector>

namespace flashomp {

struct Problem {
    std::int64_t batch = 0; ///< sequences
    std::int64_t heads_q = 0;
    std::int64_t heads_kv = 0;   ///< divides heads_q
    std::int64_t seqlen_q = 0;   ///< Nq; with packed sequences, the longest
    std::int64_t seqlen_k = 0;   ///< Nk; with packed sequences, the longest
    std::int64_t head_dim = 0;   ///< 1..256
    std::int64_t head_dim_v = 0; ///< 1..256
    DType dtype = DType::float32;

    double scale = 1.0;
    Causal causal = Causal::none;
    Window window;
    double softcap = 0.0;
    Dropout dropout;

    // Inputs. Absent ones have rank 0. Axes as documented in attention.hpp; strides are the caller's.
    ConstTensorView q, k, v;
    ConstTensorView alibi_slopes, bias, key_padding_mask, cu_seqlens_q, cu_seqlens_k, sink;
    ConstTensorView q_scale, k_scale, v_scale;

    /// Copies of cu_seqlens for the planner; empty when not packed.
    std::vector<std::int32_t> starts_q, starts_k;

    // Outputs of forward; inputs of backward.
    TensorView o, lse;

    // Backward only.
    ConstTensorView dout;
    TensorView dq, dk, dv, dbias, dsink;
    bool is_backward = false;

    Options choice;             ///< backend, machine, device, threads as asked for
    bool has_large_lse = false; ///< backward in float32: some |LSE| is so large that its rounding shows
    bool is_tuned = false;      ///< choice has its machine and tiling from a tuning table instead

    /// The larger head dim, rounded up to one that GPU kernels are compiled for: 64, 128 or 256.
    [[nodiscard]] int kernel_depth() const;

    /// Whether scores are more than a positive scale times q·k (offload::has_modifications() of the parameters to
    /// come).
    [[nodiscard]] bool is_modified() const;

    /// Every tensor with the name messages use for it; absent ones too.
    [[nodiscard]] std::vector<std::pair<const char*, ConstTensorView>> inputs() const;
    [[nodiscard]] std::vector<std::pair<const char*, TensorView>> outputs() const;
};

/// A tensor that is only read, as the view of a result: what is an output of forward is an input of backward.
[[nodiscard]] TensorView as_result(const ConstTensorView& view);

} // namespace flashomp
