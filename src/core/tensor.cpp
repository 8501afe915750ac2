#include "flashomp/tensor.hpp"

#include <algorithm>

namespace flashomp {

std::string_view name_of(DType dtype)
{
    switch (dtype) {
    case DType::float8_e4m3:
        return "float8_e4m3";
    case DType::int8:
        return "int8";
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
    case DType::bits:
        return "bits";
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

void expect_elements(const ConstTensorView& view, std::size_t given)
{
    const auto shape = std::span(view.shape).first(static_cast<std::size_t>(view.rank));
    std::int64_t count = view.rank > 0 ? 1 : 0;
    bool is_possible = std::all_of(shape.begin(), shape.end(), [](std::int64_t extent) { return extent >= 0; });
    for (const std::int64_t extent : shape) {
        is_possible = is_possible && !__builtin_mul_overflow(count, extent, &count);
    }
    if (!is_possible || static_cast<std::size_t>(count) != given) {
        throw Error("a tensor view of shape " + shape_string(view) + " was given " + std::to_string(given) +
                    " elements; " +
                    (is_possible ? "it must be given " + std::to_string(count) + "."
                                 : "extents must be 0 or more, and their product an int64."));
    }
}

} // namespace flashomp
