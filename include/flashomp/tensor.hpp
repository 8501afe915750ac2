// Tensor views: how callers hand memory to flashomp. A view never owns, copies or frees anything.
#pragma once

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
/// when a view is given to forward() or backward().
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

    /// A view of any strides; both lists have one entry an axis.
    BasicTensorView(Pointer data_, DType dtype_, std::initializer_list<std::int64_t> shape_,
                    std::initializer_list<std::int64_t> strides_, Memory memory_ = Memory::host)
        : data(data_), dtype(dtype_), memory(memory_), rank(static_cast<int>(shape_.size()))
    {
        int axis = 0;
        for (const std::int64_t extent : shape_) {
            shape.at(static_cast<std::size_t>(axis++)) = extent;
        }
        axis = 0;
        for (const std::int64_t stride : strides_) {
            strides.at(static_cast<std::size_t>(axis++)) = stride;
        }
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
        BasicTensorView view(data, dtype, shape, {}, memory);
        std::int64_t stride = 1;
        for (int axis = view.rank - 1; axis >= 0; --axis) {
            view.strides[static_cast<std::size_t>(axis)] = stride;
            stride *= view.shape[static_cast<std::size_t>(axis)];
        }
        return view;
    }

    /// The same memory with two axes exchanged.
    [[nodiscard]] BasicTensorView transposed(int first, int second) const
    {
        BasicTensorView view = *this;
        std::swap(view.shape.at(static_cast<std::size_t>(first)), view.shape.at(static_cast<std::size_t>(second)));
        std::swap(view.strides.at(static_cast<std::size_t>(first)), view.strides.at(static_cast<std::size_t>(second)));
        return view;
    }

    /// Whether the caller gave this tensor at all.
    [[nodiscard]] explicit operator bool() const { return rank > 0; }

    /// Number of elements.
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

/// "[2, 128, 4, 64]", for messages.
[[nodiscard]] std::string shape_string(const ConstTensorView& view);

} // namespace flashomp
