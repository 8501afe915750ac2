// The reference: standard attention with its stored matrices of scores. It defines what every other backend must
// compute.
#pragma once

#include "problem.hpp"

#include <cstdint>
#include <vector>

namespace flashomp::reference {

/// The precision of every operation. `none` is float64, the oracle. `float32` computes in float throughout. The 16-bit
/// ones are the naive low-precision baseline that tolerances are relative to: float arithmetic whose result is rounded
/// to the type after each operation (a matrix product or a sum is one operation: accumulated in float, rounded once).
/// float16 overflows beyond 65504 as naive float16 does; its results can then be infinite or NaN. float8_e4m3 is
/// float32 but for what 8-bit products of matrices are like: scores are cut off to 11 bits, 256 times the probabilities
/// are rounded to 8 bits, and o to bfloat16.
enum class Rounding : std::uint8_t { none, float32, bfloat16, float16, float8_e4m3 };

/// Contiguous, in the layouts of attention.hpp: o [B, Nq, Hq, head_dim_v] and lse [B, Hq, Nq]; with packed sequences
/// o [total_q, Hq, head_dim_v] and lse [Hq, total_q].
struct ForwardResult {
    std::vector<double> o, lse;
};

/// Contiguous, in the shapes of q, k, v, bias and sink. dbias and dsink are empty without a bias or sink.
struct BackwardResult {
    std::vector<double> dq, dk, dv, dbias, dsink;
};

struct Evaluation {
    ForwardResult outputs;
    BackwardResult gradients;
};

/// Inputs are host tensors of any floating-point dtype, float64 included; outputs of `problem` are not touched.
[[nodiscard]] ForwardResult forward(const Problem& problem, Rounding rounding = Rounding::none);

/// Runs its own forward in the same precision: problem.o and problem.lse are not read.
[[nodiscard]] BackwardResult backward(const Problem& problem, Rounding rounding = Rounding::none);

/// forward() and backward() of a backward problem in one go: P is computed once for both.
[[nodiscard]] Evaluation evaluate(const Problem& problem, Rounding rounding = Rounding::none);

/// Threads that a problem is computed on: no more than it has heads in all sequences.
[[nodiscard]] int threads_of(const Problem& problem);

/// forward() in float64, rounded into problem.o and problem.lse. Nothing is written before everything is computed.
void forward_into(const Problem& problem);

/// backward() in float64, rounded into those of problem.dq, dk, dv, dbias and dsink that are given. Nothing is written
/// before everything is computed.
void backward_into(const Problem& problem);

/// Bytes of the N x N matrices that standard attention keeps in the problem's dtype: scores and probabilities, and for
/// a backward problem their gradients: (2 or 4)·Hq·Nq·Nk·size_of(dtype), summed over the sequences.
[[nodiscard]] std::int64_t standard_attention_bytes(const Problem& problem);

/// The dropout mask, contiguous [B, Hq, Nq, Nk] (the longest lengths when packed): 1 where a probability is kept.
[[nodiscard]] std::vector<std::uint8_t> dropout_mask(const Problem& problem);

} // namespace flashomp::reference
