#pragma once

#include "flashomp/tensor.hpp"

namespace flashomp {

/// Whether two different indices of a view name the same element (a stride of 0, for example).
[[nodiscard]] bool overlaps_itself(const ConstTensorView& view);

/// Whether two views share an element. Exact for views with the same strides (slices of one packed qkv tensor);
/// other views count as overlapping when their address ranges do. Shapes for which that takes too long count, too.
[[nodiscard]] bool overlap(const ConstTensorView& a, const ConstTensorView& b);

} // namespace flashomp
