// The lengths of a cache's sequences as kernels read them: anew in every run.
#pragma once

#include "kernel_params.hpp"
#include "problem.hpp"

#include <cstdint>
#include <vector>

namespace flashomp {

/// Those of the compressed form, which has them in pages and rows of the last one, are computed, and those of a cache
/// of 8 bits that has none. Memory for them is got here, and not by runs.
class CacheLengths {
public:
    explicit CacheLengths(const Problem& problem);

    /// What is computed, for who keeps memory for a copy of it; rank 0 where nothing is.
    [[nodiscard]] ConstTensorView view() const;

    /// The boundaries with the lengths of a run's problem, where kernels can read them.
    [[nodiscard]] Boundaries read(const Problem& problem, Boundaries boundaries, Tensors& tensors);

private:
    std::vector<std::int32_t> lengths_;
};

} // namespace flashomp
