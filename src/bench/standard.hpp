// Standard attention as it is written without tiles: S and P of all heads are there whole. What flashomp is set beside.
#pragma once

#include "bench_case.hpp"

#include "flashomp/error.hpp"

#include <memory>

namespace flashomp::bench {

/// Out of memory, with what was needed.
class OutOfMemory : public Error {
public:
    using Error::Error;
};

/// Standard attention on host threads, float32 whatever the dtype of the inputs, products by Eigen as this file is
/// compiled: for the baseline instruction set. S = QKᵀ, P =
/// softmax(S), O = PV, and in the backward pass dV = PᵀdO, dP = dOVᵀ, dS = P∘(dP − rowsum(P∘dP)), dQ = dS·K, dK =
/// dSᵀ·Q. For the backward pass P of all heads is kept, as automatic differentiation keeps it.
class StandardAttention {
public:
    /// Reads and writes the tensors of `bench`, which lives at least as long and is on the host. Throws NotBuilt for
    /// packed sequences.
    StandardAttention(BenchCase& bench, int threads);
    ~StandardAttention();
    StandardAttention(const StandardAttention&) = delete;
    StandardAttention& operator=(const StandardAttention&) = delete;

    /// o and lse. Throws OutOfMemory, before it takes any, where S and P do not fit into memory.
    void forward(bool keep_p);

    /// dq, dk and dv, after forward(true). Throws OutOfMemory as forward() does.
    void backward();

    /// Gives P back.
    void drop();

private:
    struct State;
    std::unique_ptr<State> state_;
};

} // namespace flashomp::bench
