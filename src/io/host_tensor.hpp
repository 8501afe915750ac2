// A tensor that owns its memory on the host: what files are read into and results are written from.
#pragma once

#include "flashomp/tensor.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace flashomp::io {

using Shape = std::vector<std::int64_t>;

/// What a new tensor holds.
enum class Fill : std::uint8_t {
    zero,    ///< zeros
    poison,  ///< every byte 0xFF (NaN in the floating-point formats), so that an element nobody wrote shows
    nothing, ///< indeterminate bytes, for a caller who overwrites all of them next
};

/// "2, 64"; any rank, any extents.
[[nodiscard]] std::string joined(const Shape& shape);

/// "float32 [2, 64]", for messages; any rank, any extents.
[[nodiscard]] std::string describe(DType dtype, const Shape& shape);

/// The bytes a contiguous tensor needs; nothing when an extent is negative or when the size does not fit in 63 bits.
/// Extents of zero count as one in that second test, so the strides of an accepted shape fit as well.
[[nodiscard]] std::optional<std::int64_t> checked_bytes(DType dtype, const Shape& shape);

/// Owns 64-byte aligned, row-major memory. Moves, does not copy. A default-constructed or moved-from tensor holds
/// nothing, and its view is "not given" to the rest of the library.
///
/// A tensor of rank 0 (a NumPy scalar) has one element; its view has a non-null pointer.
class HostTensor {
public:
    HostTensor() = default;

    /// A tensor of rank 0 to 4 with non-negative extents.
    /// Throws Error when the shape breaks that, is too large to address, or does not fit in memory.
    HostTensor(DType dtype, Shape shape, Fill fill = Fill::zero);

    /// A row-major copy of a host view of any strides, bit for bit. Throws Error as the constructor does.
    [[nodiscard]] static HostTensor copy_of(const ConstTensorView& view);

    [[nodiscard]] DType dtype() const { return dtype_; }
    [[nodiscard]] const Shape& shape() const { return shape_; }
    [[nodiscard]] int rank() const { return static_cast<int>(shape_.size()); }

    /// Number of elements; 0 when the tensor holds nothing.
    [[nodiscard]] std::int64_t elements() const;

    /// Bytes of all elements.
    [[nodiscard]] std::int64_t bytes() const { return elements() * size_of(dtype_); }

    /// The first element; null only when the tensor holds nothing (a zero-length axis still has a pointer).
    [[nodiscard]] void* data() { return memory_.get(); }
    [[nodiscard]] const void* data() const { return memory_.get(); }

    /// The whole tensor, row-major. Valid while this tensor lives, and after it is moved.
    [[nodiscard]] TensorView view();
    [[nodiscard]] ConstTensorView view() const;

private:
    struct Free {
        void operator()(std::byte* memory) const;
    };

    DType dtype_ = DType::float32;
    Shape shape_;
    std::unique_ptr<std::byte, Free> memory_;
};

/// The same values in another element type, as a new tensor of the same shape.
///
/// float16, bfloat16, float32 and float64 convert into each other: one rounding, to nearest with ties to even;
/// denormals, infinities and NaN carry over and too large a value becomes an infinity. int32 and int64 convert into
/// each other, and a value that int32 cannot hold throws Error. Any type converts to itself. Everything else throws
/// Error. A tensor that holds nothing gives one that holds nothing.
[[nodiscard]] HostTensor converted(const HostTensor& tensor, DType to);

/// The elements of a floating-point tensor, exactly. Throws Error for the other types.
[[nodiscard]] std::vector<double> doubles(const HostTensor& tensor);

} // namespace flashomp::io
