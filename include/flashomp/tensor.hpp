// Tensor views: how callers hand memory to flashomp. A view never owns, copies or frees anything.
#pragma once

#include "flashomp/error.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace flashomp {

/// Element types. Queries, keys, values and outputs are float32, bfloat16 or float16. forward() also takes queries,
/// keys and values in float8_e4m3 (8 bits, 3 of them the fraction's, the largest number 448, no infinity), with
/// Options::q_scale and so on, and keys and values of a key/value cache in float8_e4m3 or int8. The others appear in
/// masks (boolean, bits), packed-sequence offsets (int32) and files.
///
/// An element of `bits` is a byte that holds 8 booleans of the last axis, the first in its lowest bit, as
/// numpy.packbits(mask, axis=-1, bitorder="little") packs them: Nk booleans are ceil(Nk / 8) elements.
enum class DType : std::uint8_t { float8_e4m3, float16, bfloat16, float32, float64, int32, int64, boolean, bits, int8 };

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
    case DType::bits:
    case DType::int8:
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

/// Whether `data` may be dereferenced by the CPU (host) or is memory of the call's device (device): from cudaMalloc,
/// PyTorch or their like, or from omp_target_alloc for the openmp backend. Both are one where DeviceInfo says
/// shares_cuda_memory, which it does unless the process used OpenMP on the GPU before its first call here: OpenMP then
/// works in a CUDA context of its own, and CUDA's memory is not for the openmp backend.
enum class Memory : std::uint8_t { host, device };

/// The DType of a C++ type. The floating-point types of 8 and 16 bits have no C++ type: their views are made from a
/// pointer.
template <class Element>
struct ElementType {
};
template <>
struct ElementType<float> {
    static constexpr DType dtype = DType::float32;
};
template <>
struct ElementType<double> {
    static constexpr DType dtype = DType::float64;
};
template <>
struct ElementType<std::int32_t> {
    static constexpr DType dtype = DType::int32;
};
template <>
struct ElementType<std::int64_t> {
    static constexpr DType dtype = DType::int64;
};
template <>
struct ElementType<std::int8_t> {
    static constexpr DType dtype = DType::int8;
};
template <>
struct ElementType<bool> {
    static constexpr DType dtype = DType::boolean;
};

/// Elements that a view with this pointer can refer to.
template <class Element, class Pointer>
concept ViewedElement = std::is_convertible_v<Element*, Pointer> && requires
{
    ElementType<std::remove_cv_t<Element>>::dtype;
};

template <class Pointer>
struct BasicTensorView;
using TensorView = BasicTensorView<void*>;
using ConstTensorView = BasicTensorView<const void*>;

/// "[2, 128, 4, 64]", for messages; of a view with more axes than there can be, the first four.
[[nodiscard]] std::string shape_string(const ConstTensorView& view);

/// Throws Error unless a tensor of the view's shape has `given` elements.
void expect_elements(const ConstTensorView& view, std::size_t given);

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

    /// A view of any strides. Shape and strides have one entry for each axis, in braces or in a std::vector,
    /// std::array or std::span. Throws Error when their lengths differ or are more than four.
    BasicTensorView(Pointer data_, DType dtype_, std::initializer_list<std::int64_t> shape_,
                    std::initializer_list<std::int64_t> strides_, Memory memory_ = Memory::host)
        : BasicTensorView(data_, dtype_, std::span(shape_.begin(), shape_.size()),
                          std::span(strides_.begin(), strides_.size()), memory_)
    {
    }
    BasicTensorView(Pointer data_, DType dtype_, std::span<const std::int64_t> shape_,
                    std::span<const std::int64_t> strides_, Memory memory_ = Memory::host)
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

    /// A row-major view of `data` with the given shape, in braces or in a std::vector, std::array or std::span.
    /// Throws Error when the shape has more than four axes.
    [[nodiscard]] static BasicTensorView
    contiguous(Pointer data, DType dtype, std::initializer_list<std::int64_t> shape, Memory memory = Memory::host)
    {
        return contiguous(data, dtype, std::span(shape.begin(), shape.size()), memory);
    }
    [[nodiscard]] static BasicTensorView contiguous(Pointer data, DType dtype, std::span<const std::int64_t> shape,
                                                    Memory memory = Memory::host)
    {
        BasicTensorView view(data, dtype, shape, shape, memory);
        std::uint64_t stride = 1; // of extents that no tensor has it may wrap round
        for (int axis = view.rank - 1; axis >= 0; --axis) {
            view.strides[static_cast<std::size_t>(axis)] = static_cast<std::int64_t>(stride);
            stride *= static_cast<std::uint64_t>(view.shape[static_cast<std::size_t>(axis)]);
        }
        return view;
    }

    /// A row-major view of all elements of `data`, whose type gives the dtype: contiguous(std::span(values), {2, 3}).
    /// Throws Error when the shape has more than four axes or another number of elements than `data`.
    template <ViewedElement<Pointer> Element, std::size_t extent>
    [[nodiscard]] static BasicTensorView
    contiguous(std::span<Element, extent> data, std::initializer_list<std::int64_t> shape, Memory memory = Memory::host)
    {
        return contiguous(data, std::span<const std::int64_t>(shape.begin(), shape.size()), memory);
    }
    template <ViewedElement<Pointer> Element, std::size_t extent>
    [[nodiscard]] static BasicTensorView contiguous(std::span<Element, extent> data,
                                                    std::span<const std::int64_t> shape, Memory memory = Memory::host)
    {
        const auto view = contiguous(data.data(), ElementType<std::remove_cv_t<Element>>::dtype, shape, memory);
        expect_elements(view, data.size());
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

    /// All members are the same, those beyond the rank, too.
    friend bool operator==(const BasicTensorView&, const BasicTensorView&) = default;

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

} // namespace flashomp
