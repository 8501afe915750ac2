#pragma once

#include "problem.hpp"

#include <array>

namespace flashomp {

/// Checks the problem's options against its shapes; with packed sequences, completes those.
void check_options(Problem& problem);

/// Checks that the probability is in [0, 1).
void check_dropout(const Dropout& dropout);

/// Checks the gradients of options against the options.
void check_gradients(const Problem& problem);

/// Checks dtype and shape; `like` says in words what is expected.
void check_tensor(const char* name, const ConstTensorView& view, DType dtype, int rank,
                  const std::array<std::int64_t, 4>& shape, const char* like);

/// Checks that no two elements of an output share an address.
void check_no_self_overlap(const char* name, const ConstTensorView& view);

} // namespace flashomp
