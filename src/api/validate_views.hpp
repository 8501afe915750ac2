// What any tensor of a call must be like, whatever it is for.
#pragma once

#include "flashomp/tensor.hpp"

#include <cstdint>

namespace flashomp {

constexpr std::int64_t most_rows = std::int64_t{1} << 30; ///< kernels add two row numbers in an int
constexpr std::int64_t most_heads = std::int64_t{1} << 20;

/// Checks, of a view that may be "not given", what all other checks read: the number of axes, dtype and memory.
void check_view(const char* name, const ConstTensorView& view);

/// Checks where the elements are, of a view that is given: extents and strides that fit a memory, none negative, the
/// last axis of stride 1 unless any is allowed, data that is there and aligned. Needs check_view().
void check_layout(const char* name, const ConstTensorView& view, bool has_any_strides = false);

/// Checks that there are at most so many of `what`.
void check_extent(const char* name, const char* what, std::int64_t extent, std::int64_t most);

/// Checks that a row has 1 to `most` elements.
void check_head_dim(const char* name, std::int64_t dim, std::int64_t most);

} // namespace flashomp
