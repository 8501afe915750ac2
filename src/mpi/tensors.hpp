// Parts of tensors, and copies, sums and roundings of those on the host.
#pragma once

#include "flashomp/tensor.hpp"

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace flashomp::mpi {

/// `count` of an axis from `first` on.
template <class Pointer>
[[nodiscard]] BasicTensorView<Pointer> part_of(BasicTensorView<Pointer> view, int axis, std::int64_t first,
                                               std::int64_t count)
{
    using Byte = std::conditional_t<std::is_const_v<std::remove_pointer_t<Pointer>>, const std::byte, std::byte>;
    const auto a = static_cast<std::size_t>(axis);
    if (view.data != nullptr && count > 0) { // an empty tensor may have no memory
        view.data = static_cast<Byte*>(view.data) + first * view.strides.at(a) * size_of(view.dtype);
    }
    view.shape.at(a) = count;
    return view;
}

/// The same where the axis does not broadcast.
template <class Pointer>
[[nodiscard]] BasicTensorView<Pointer> part_unless_one(const BasicTensorView<Pointer>& view, int axis,
                                                       std::int64_t first, std::int64_t count)
{
    return view.shape.at(static_cast<std::size_t>(axis)) == 1 ? view : part_of(view, axis, first, count);
}

/// With one more axis in front, of extent 1: packed tensors are a batch of one.
template <class Pointer>
[[nodiscard]] BasicTensorView<Pointer> with_batch(const BasicTensorView<Pointer>& view)
{
    BasicTensorView<Pointer> more = view;
    more.rank = view.rank + 1;
    for (std::size_t axis = 0; axis < static_cast<std::size_t>(view.rank); ++axis) {
        more.shape.at(axis + 1) = view.shape.at(axis);
        more.strides.at(axis + 1) = view.strides.at(axis);
    }
    more.shape[0] = 1;
    more.strides[0] = 0;
    return more;
}

/// [A, heads, rows] as [A, rows, heads, 1].
template <class Pointer>
[[nodiscard]] BasicTensorView<Pointer> rows_first(const BasicTensorView<Pointer>& lse)
{
    BasicTensorView<Pointer> view = lse.transposed(1, 2);
    view.rank = 4;
    view.shape[3] = view.strides[3] = 1;
    return view;
}

/// Bit for bit, of one shape and dtype.
void copy(const ConstTensorView& from, const TensorView& to);
/// sums += terms, of one shape, both float32.
void add(const ConstTensorView& terms, const TensorView& sums);
/// From one of float32 and 16 bits to another, each element once, to the nearest with ties to even.
void convert(const ConstTensorView& from, const TensorView& to);
/// Booleans [1|B, 1|Hq, 1|Nq, count] of a mask of bits, keys [first, first + count).
void unpack_bits(const ConstTensorView& bits, std::int64_t first, const TensorView& booleans);
void fill(const TensorView& tensor, float value);

} // namespace flashomp::mpi
