#include "problem.hpp"

#include "option_list.hpp"

#include <algorithm>
#include <cmath>

namespace flashomp {

std::vector<std::pair<const char*, ConstTensorView>> Problem::inputs() const
{
    std::vector<std::pair<const char*, ConstTensorView>> all;
    all.reserve(tensor_options.size() + 6);
    all.insert(all.end(), {{"q", q}, {"k", k}, {"v", v}});
    for (const TensorOption& option : tensor_options) {
        all.emplace_back(option.name, options.*option.member);
    }
    if (is_backward) {
        all.insert(all.end(), {{"o", o}, {"lse", lse}, {"dout", dout}});
    }
    return all;
}

std::vector<std::pair<const char*, TensorView>> Problem::outputs() const
{
    if (is_backward) {
        std::vector<std::pair<const char*, TensorView>> all = {{"dq", dq}, {"dk", dk}, {"dv", dv}};
        for (const TensorOption& option : tensor_options) {
            if (option.gradient) {
                all.emplace_back(option.gradient.name, this->*option.gradient.kept);
            }
        }
        return all;
    }
    return {{"o", o}, {"lse", lse}};
}

int Problem::kernel_depth() const
{
    const std::int64_t largest = std::max(head_dim, head_dim_v);
    return largest <= 64 ? 64 : (largest <= 128 ? 128 : 256);
}

double Problem::scale() const
{
    return options.scale.value_or(1.0 / std::sqrt(static_cast<double>(head_dim)));
}

TensorView as_result(const ConstTensorView& view)
{
    TensorView result;
    result.data = const_cast<void*>(view.data);
    result.dtype = view.dtype;
    result.memory = view.memory;
    result.rank = view.rank;
    result.shape = view.shape;
    result.strides = view.strides;
    return result;
}

} // namespace flashomp
