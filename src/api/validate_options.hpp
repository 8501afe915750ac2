#pragma once

#include "option_list.hpp"
#include "problem.hpp"

#include <array>
#include <cstdint>
#include <vector>

namespace flashomp {

/// Checks the problem's options against its shapes; with packed sequences, completes those.
void check_options(Problem& problem);

/// Offsets of packed sequences: int32 [batch + 1] on the host, from 0 to `total` without a step back.
[[nodiscard]] std::vector<std::int32_t> read_starts(const char* name, const ConstTensorView& view, std::int64_t total);

/// Checks one tensor of the options, which is given, against the problem's shape.
void check_tensor_option(const TensorOption& option, const Problem& problem);

/// Checks that both sides are -1 or more.
void check_window(const Window& window);

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
