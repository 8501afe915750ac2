#pragma once

#include "problem.hpp"

#include <array>

namespace flashomp {

/// Checks options against the shapes already in the problem and moves them into it.
void apply_options(Problem& problem, const Options& options);

/// Checks that the probability is in [0, 1).
void check_dropout(const Dropout& dropout);

/// Checks dbias and dsink against the options they belong to.
void check_gradients(const Problem& problem, const BackwardArgs& args, const Options& options);

/// Checks dtype and shape; `like` says in words what is expected.
void check_tensor(const char* name, const ConstTensorView& view, DType dtype, int rank,
                  const std::array<std::int64_t, 4>& shape, const char* like);

/// Checks that no two elements of an output share an address.
void check_no_self_overlap(const char* name, const ConstTensorView& view);

} // namespace flashomp
