// Elements of one tensor to another, as kernels are told of it.
#pragma once

#include "algorithm/elements.hpp"

#include "flashomp/tensor.hpp"

namespace flashomp {

/// From and to tensors of one shape, where `unpack` has other keys in `from`. Axes that follow one another in both
/// memories are one.
[[nodiscard]] offload::ElementsParams elements_params(offload::ElementsWork work, const ConstTensorView& from,
                                                      const TensorView& to);

} // namespace flashomp
