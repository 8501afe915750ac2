#include "row_major.hpp"

namespace flashomp {

TensorView row_major(void* data, const ConstTensorView& like, Memory memory)
{
    TensorView view;
    view.data = data;
    view.dtype = like.dtype;
    view.memory = memory;
    view.rank = like.rank;
    view.shape = like.shape;
    std::int64_t stride = 1;
    for (int axis = like.rank - 1; axis >= 0; --axis) {
        view.strides.at(static_cast<std::size_t>(axis)) = stride;
        stride *= like.shape.at(static_cast<std::size_t>(axis));
    }
    return view;
}

bool is_row_major(const ConstTensorView& view)
{
    const TensorView ideal = row_major(nullptr, view, view.memory);
    for (int axis = 0; axis < view.rank; ++axis) {
        const auto a = static_cast<std::size_t>(axis);
        if (view.shape.at(a) > 1 && view.strides.at(a) != ideal.strides.at(a)) {
            return false;
        }
    }
    return true;
}

} // namespace flashomp
