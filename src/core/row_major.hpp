// Views without gaps between their elements.
#pragma once

#include "flashomp/tensor.hpp"

namespace flashomp {

/// The row-major view of the same shape and dtype.
[[nodiscard]] TensorView row_major(void* data, const ConstTensorView& like, Memory memory);

/// Whether the view is row-major itself. Strides of axes of one element do not count.
[[nodiscard]] bool is_row_major(const ConstTensorView& view);

} // namespace flashomp
