#include "flashomp/tensor.hpp"

#include <algorithm>

namespace flashomp {

std::string_view name_of(DType dtype)
{
    switch (dtype) {
    case DType::float8_e4m3:
        return "float8_e4m3";
    case DType::float16:
        return "float16";
    case DType::bfloat16:
        return "bfloat16";
    case DType::float32:
        return "float32";
    case DType::float64:
        return "float64";
    case DType::int32:
        return "int32";
    case DType::int64:
        return "int64";
    case DType::boolean:
        return "boolean";
    }
    return "unknown";
}

std::string shape_string(const ConstTensorView& view)
{
    std::string text = "[";
    for (int axis = 0; axis < std::min(view.rank, ConstTensorView::max_rank); ++axis) {
        text += (axis > 0 ? ", " : "") + std::to_string(view.shape[static_cast<std::size_t>(axis)]);
    }
    return text + (view.rank > ConstTensorView::max_rank ? ", ...]" : "]");
}

} // namespace flashomp
