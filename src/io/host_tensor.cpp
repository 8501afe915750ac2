#include "host_tensor.hpp"

#include "flashomp/error.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <new>
#include <utility>

#include <fmt/format.h>

namespace flashomp::io {

namespace {

constexpr std::align_val_t alignment{64};

/// The row-major view of `data`, mutable or const.
template <class View, class Pointer>
View contiguous_view(Pointer data, DType dtype, const Shape& shape)
{
    View view;
    view.data = data;
    view.dtype = dtype;
    view.rank = static_cast<int>(shape.size());
    std::int64_t stride = 1;
    for (std::size_t axis = shape.size(); axis-- > 0;) {
        view.shape.at(axis) = shape[axis];
        view.strides.at(axis) = stride;
        stride *= shape[axis];
    }
    return view;
}

/// Copies the elements of `view`, of which there is at least one, to `target` in row-major order.
void gather(std::byte* target, const ConstTensorView& view)
{
    constexpr std::size_t axes = ConstTensorView::max_rank;
    std::array<std::int64_t, axes> extents{1, 1, 1, 1};
    std::array<std::int64_t, axes> strides{1, 1, 1, 1};
    const std::size_t leading = axes - static_cast<std::size_t>(view.rank); // axes that the view lacks
    for (std::size_t axis = leading; axis < axes; ++axis) {
        extents[axis] = view.shape[axis - leading];
        strides[axis] = view.strides[axis - leading];
    }

    const std::int64_t size = size_of(view.dtype);
    const std::int64_t run = strides[3] == 1 ? extents[3] : 1; // elements that lie side by side
    const auto run_bytes = static_cast<std::size_t>(run * size);
    const auto* const source = static_cast<const std::byte*>(view.data);
    for (std::int64_t i = 0; i < extents[0]; ++i) {
        for (std::int64_t j = 0; j < extents[1]; ++j) {
            for (std::int64_t k = 0; k < extents[2]; ++k) {
                const std::byte* const row = source + (i * strides[0] + j * strides[1] + k * strides[2]) * size;
                for (std::int64_t l = 0; l < extents[3]; l += run) {
                    std::memcpy(target, row + l * strides[3] * size, run_bytes);
                    target += run_bytes;
                }
            }
        }
    }
}

} // namespace

std::string joined(const Shape& shape)
{
    std::string text;
    for (const std::int64_t extent : shape) {
        text += (text.empty() ? "" : ", ") + std::to_string(extent);
    }
    return text;
}

std::string describe(DType dtype, const Shape& shape)
{
    return fmt::format("{} [{}]", name_of(dtype), joined(shape));
}

std::optional<std::int64_t> checked_bytes(DType dtype, const Shape& shape)
{
    std::int64_t bytes = size_of(dtype);
    bool empty = false;
    for (const std::int64_t extent : shape) {
        const std::int64_t factor = std::max<std::int64_t>(extent, 1);
        if (extent < 0 || bytes > std::numeric_limits<std::int64_t>::max() / factor) {
            return std::nullopt;
        }
        bytes *= factor;
        empty = empty || extent == 0;
    }
    return empty ? 0 : bytes;
}

void HostTensor::Free::operator()(std::byte* memory) const
{
    ::operator delete(memory, alignment);
}

HostTensor::HostTensor(DType dtype, Shape shape, Fill fill) : dtype_(dtype), shape_(std::move(shape))
{
    if (shape_.size() > ConstTensorView::max_rank) {
        throw Error(fmt::format("A tensor has {} axes ({}); at most {} are allowed.", shape_.size(),
                                describe(dtype_, shape_), ConstTensorView::max_rank));
    }
    const std::optional<std::int64_t> needed = checked_bytes(dtype_, shape_);
    if (!needed) {
        throw Error(fmt::format("A tensor of {} cannot exist; extents must not be negative and the size in bytes must "
                                "fit in 63 bits.",
                                describe(dtype_, shape_)));
    }
    const auto size = static_cast<std::size_t>(*needed);
    memory_.reset(static_cast<std::byte*>(::operator new(std::max<std::size_t>(size, 1), alignment, std::nothrow)));
    if (memory_ == nullptr) {
        throw Error(fmt::format("A tensor of {} needs {} bytes, more than this machine's free memory.",
                                describe(dtype_, shape_), size));
    }
    if (fill != Fill::nothing) {
        std::memset(memory_.get(), fill == Fill::poison ? 0xFF : 0, size);
    }
}

HostTensor HostTensor::copy_of(const ConstTensorView& view)
{
    if (view.rank < 0 || view.rank > ConstTensorView::max_rank) {
        throw Error(fmt::format("A view has {} axes; 0 to {} are allowed.", view.rank, ConstTensorView::max_rank));
    }
    HostTensor copy(view.dtype, Shape(view.shape.begin(), view.shape.begin() + view.rank), Fill::nothing);
    if (copy.bytes() > 0) {
        gather(copy.memory_.get(), view);
    }
    return copy;
}

std::int64_t HostTensor::elements() const
{
    std::int64_t count = memory_ != nullptr ? 1 : 0;
    for (const std::int64_t extent : shape_) {
        count *= extent;
    }
    return count;
}

TensorView HostTensor::view()
{
    return contiguous_view<TensorView>(data(), dtype_, shape_);
}

ConstTensorView HostTensor::view() const
{
    return contiguous_view<ConstTensorView>(data(), dtype_, shape_);
}

} // namespace flashomp::io
