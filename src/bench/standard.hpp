// Standard attention without tiles, which stores S and P of all heads whole: the benchmark compares flashomp with it.
#pragma once

#include "bench_case.hpp"

#include "flashomp/error.hpp"

#include <memory>
#include <string>

namespace flashomp::bench {

/// Whether standard attention is there for a shape: tensors that are not packed, and no mask but a causal one.
[[nodiscard]] bool has_standard_attention(const cost::Shape& shape);

/// Throws NotBuilt where it is not.
void expect_standard_attention(const cost::Shape& shape);

/// Both passes of standard attention over the tensors of a BenchCase.
class Standard {
public:
    Standard() = default;
    virtual ~Standard() = default;
    Standard(const Standard&) = delete;
    Standard& operator=(const Standard&) = delete;

    /// For results: what multiplies, and in which type.
    [[nodiscard]] virtual std::string machine() const = 0;

    /// o and lse. Throws RunFailure where S and P do not fit into memory.
    virtual void forward(bool keep_p) = 0;

    /// dq, dk and dv, after forward(true). Throws as forward() does.
    virtual void backward() = 0;
};

/// Standard attention on host threads, in float32 for inputs of every dtype. Eigen multiplies, compiled for the
/// baseline instruction set. S = QKᵀ, P = softmax(S), O = PV; in the backward pass dV = PᵀdO, dP = dOVᵀ, dS = P∘(dP −
/// rowsum(P∘dP)), dQ = dS·K, dK = dSᵀ·Q. The backward pass needs P of all heads, which forward(true) keeps, as
/// automatic differentiation does.
class StandardAttention final : public Standard {
public:
    /// Reads and writes the tensors of `bench`, which lives at least as long and is on the host. Throws NotBuilt
    /// where has_standard_attention() is false.
    StandardAttention(BenchCase& bench, int threads);
    ~StandardAttention() override;
    StandardAttention(const StandardAttention&) = delete;
    StandardAttention& operator=(const StandardAttention&) = delete;

    [[nodiscard]] std::string machine() const override { return "eigen-float32"; }

    /// Throws before it takes memory for S and P.
    void forward(bool keep_p) override;
    void backward() override;

    /// Gives P back.
    void drop();

private:
    struct State;
    std::unique_ptr<State> state_;
};

} // namespace flashomp::bench
