// Tensor views: how callers hand memory to flashomp. A view never owns, copies or frees anything.
#pragma once

#include "flashomp/error.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace flashomp {

/// Element types. Queries, keys, values and outputs are float32, bfloat16 or float16. forward() also takes queries,
/// keys and values in float8_e4m3 (8 bits, 3 of them the fraction's, the largest number 448, no infinity), with
/// Options::q_scale and so on. The others appear in masks (boolean), packed-sequence offsets (int32) and files.
enum class DType : std::uint8_t { float8_e4m3, float16, bfloat16, float32, float64, int32, int64, boolean };

/// Bytes of one element.
[[nodiscard]] constexpr std::int64_t size_of(DType dtype)
{
    switch (dtype) {
    case DType::float16:
    case DType::bfloat16:
        return 2;
    case DType::float32:
    case DType::int32:
        return 4;
    case DType::float64:
    case DType::int64:
        return 8;
    case DType::float8_e4m3:
    case DType::boolean:
        return 1;
    }
    return 0;
}

/// The type of o where q, k and v have this one: the same, and bfloat16 for float8_e4m3.
[[nodiscard]] constexpr DType output_type_of(DType dtype)
{
    return dtype == DType::float8_e4m3 ? DType::bfloat16 : dtype;
}

/// The name used in messages and on the command line, for example "bfloat16".
[[nodiscard]] std::string_view name_of(DType dtype);

/// Whether `data` may be dereferenced by the CPU (host) or is memory of the call's device (device): from
/// omp_target_alloc for the openmp backend, from cudaMalloc or its like for cuda. They are not shared: OpenMP's run
/// time has a CUDA context of its own.
enum class Memory : std::uint8_t { host, device };

/// A strided view of at most four axes. Strides count elements, not bytes; the last axis must have stride 1
/// when a view is given to forward() or backward(), data must be a multiple of the element's size, and all elements
/// must lie within 2^56 bytes.
///
/// Axis order is always [batch, seqlen, heads, head_dim] ("bshd"), or [total, heads, head_dim] for packed
/// sequences. Data laid out [batch, heads, seqlen, head_dim] is passed as `contiguous(...).transposed(1, 2)`.
/// A default-constructed view (rank 0) means "not given".
template <class Pointer>
struct BasicTensorView {
    static constexpr int max_rank = 4;

    Pointer data = nullptr;
    DType dtype = DType::float32;
    Memory memory = Memory::host;
    int rank = 0;
    std::array<std::int64_t, max_rank> shape{};
    std::array<std::int64_t, max_rank> strides{};

    BasicTensorView() = default;

    /// A view of any strides; both lists have one entry an axis. Throws Error where they do not, or have more than
    /// four.
    BasicTensorView(Pointer data_, DType dtype_, std::initializer_list<std::int64_t> shape_,
                    std::initializer_list<std::int64_t> strides_, Memory memory_ = Memory::host)
        : data(data_), dtype(dtype_), memory(memory_), rank(static_cast<int>(shape_.size()))
    {
        if (shape_.size() > max_rank || strides_.size() != shape_.size()) {
            throw Error("a tensor view was given " + std::to_string(shape_.size()) + " extents and " +
                        std::to_string(strides_.size()) + " strides; it must have equally many, at most 4.");
        }
        std::copy(shape_.begin(), shape_.end(), shape.begin());
        std::copy(strides_.begin(), strides_.end(), strides.begin());
    }

    /// Every mutable view is also a const view.
    template <class Other>
        requires(std::is_same_v<Pointer, const void*>&& std::is_same_v<Other, void*>)
    BasicTensorView(const BasicTensorView<Other>& other) // NOLINT(google-explicit-constructor)
        : data(other.data), dtype(other.dtype), memory(other.memory), rank(other.rank), shape(other.shape),
          strides(other.strides)
    {
    }

    /// A row-major view of `data` with the given shape.
    [[nodiscard]] static BasicTensorView
    contiguous(Pointer data, DType dtype, std::initializer_list<std::int64_t> shape, Memory memory = Memory::host)
    {
        BasicTensorView view(data, dtype, shape, shape, memory);
        std::uint64_t stride = 1; // of extents that no tensor has it may wrap round
        for (int axis = view.rank - 1; axis >= 0; --axis) {
            view.strides[static_cast<std::size_t>(axis)] = static_cast<std::int64_t>(stride);
            stride *= static_cast<std::uint64_t>(view.shape[static_cast<std::size_t>(axis)]);
        }
        return view;
    }

    /// The same memory with two axes exchanged. Throws Error for axes that the view does not have.
    [[nodiscard]] BasicTensorView transposed(int first, int second) const
    {
        if (first < 0 || second < 0 || first >= rank || second >= rank || rank > max_rank) {
            throw Error("transposed() was given axes " + std::to_string(first) + " and " + std::to_string(second) +
                        " of a tensor view with " + std::to_string(rank) + "; they must be 0 or more and less.");
        }
        BasicTensorView view = *this;
        const auto a = static_cast<std::size_t>(first);
        const auto b = static_cast<std::size_t>(second);
        std::swap(view.shape[a], view.shape[b]);
        std::swap(view.strides[a], view.strides[b]);
        return view;
    }

    /// Whether the caller gave this tensor at all.
    [[nodiscard]] explicit operator bool() const { return rank != 0; }

    /// Number of elements of a view that has a shape: 0 to 4 axes, and extents whose product is an int64.
    [[nodiscard]] std::int64_t elements() const
    {
        std::int64_t count = rank > 0 ? 1 : 0;
        for (int axis = 0; axis < rank; ++axis) {
            count *= shape[static_cast<std::size_t>(axis)];
        }
        return count;
    }
};

using TensorView = BasicTensorView<void*>;
using ConstTensorView = BasicTensorView<const void*>;

/// "[2, 128, 4, 64]", for messages; of a view with more axes than there can be, the first four.
[[nodiscard]] std::string shape_string(const ConstTensorView& view);

} // namespace flashomp
