#include "problem.hpp"

#include "option_list.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace flashomp {

void skip_rows(ConstTensorView& view, std::int64_t rows)
{
    if (rows > 0 && view.data != nullptr) {
        view.data = static_cast<const std::byte*>(view.data) +
                    rows * view.strides[1] * static_cast<std::int64_t>(size_of(view.dtype));
    }
}

void Problem::take_addresses(const Problem& other)
{
    for (const auto view : {&Problem::q, &Problem::k, &Problem::v, &Problem::dout}) {
        (this->*view).data = (other.*view).data;
    }
    for (const auto view : {&Problem::k, &Problem::v}) {
        skip_rows(this->*view, skipped_keys);
    }
    for (const auto view : {&Problem::o, &Problem::lse, &Problem::dq, &Problem::dk, &Problem::dv}) {
        (this->*view).data = (other.*view).data;
    }
    for (const TensorOption& option : tensor_options) {
        if (!is_boundaries(option)) {
            (options.*option.member).data = (other.options.*option.member).data;
        }
        if (option.gradient) {
            (this->*option.gradient.kept).data = (other.*option.gradient.kept).data;
        }
    }
    options.dropout.seed = other.options.dropout.seed;
    options.dropout.offset = other.options.dropout.offset;
    options.score_mod.object = other.options.score_mod.object;
}

int Problem::kernel_depth() const
{
    const std::int64_t largest = std::max(head_dim, head_dim_v);
    for (const int depth : {64, 128, 256}) {
        if (largest <= depth) {
            return depth;
        }
    }
    return static_cast<int>(most_head_dim);
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
