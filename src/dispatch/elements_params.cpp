#include "elements_params.hpp"

#include "plan.hpp"

namespace flashomp {

offload::ElementsParams elements_params(offload::ElementsWork work, const ConstTensorView& from, const TensorView& to)
{
    offload::ElementsParams p;
    p.work = work;
    p.bytes = static_cast<int>(size_of(to.dtype));
    p.from_element = kernel_element(from.dtype);
    p.to_element = kernel_element(to.dtype);
    p.from = from.data;
    p.to = to.data;
    int axis = 4; // that was filled last, from the back
    for (int a = to.rank - 1; a >= 0; --a) {
        const auto at = static_cast<std::size_t>(a);
        const std::int64_t extent = to.shape.at(at), from_stride = from.strides.at(at), to_stride = to.strides.at(at);
        const bool is_last = a == to.rank - 1;
        if (extent == 1 && !is_last) {
            continue;
        }
        const bool follows = axis < 4 && work != offload::ElementsWork::unpack &&
                             from_stride == p.extent[axis] * p.from_stride[axis] &&
                             to_stride == p.extent[axis] * p.to_stride[axis];
        if (follows) {
            p.extent[axis] *= extent;
            continue;
        }
        --axis;
        p.extent[axis] = extent;
        p.from_stride[axis] = from_stride;
        p.to_stride[axis] = to_stride;
    }
    return p;
}

} // namespace flashomp
