// Memory of this library's own, where the call's tensors are.
#pragma once

#include "site.hpp"

#include "flashomp/tensor.hpp"

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>

namespace flashomp::mpi {

class Buffer;

/// Bytes of a buffer, for messages.
struct BufferPart {
    Buffer* buffer;
    std::int64_t first, bytes;
};

/// Whether a buffer has a stage, as large as itself, in host memory: what messages need where MPI does not reach the
/// buffer, and what is computed on the host.
enum class Stage : std::uint8_t { none, for_messages, always };

/// Moves, does not copy; the memory stays where it is.
class Buffer {
public:
    Buffer() = default;
    /// Indeterminate bytes; throws std::bad_alloc or RunFailure.
    Buffer(Site& site, std::int64_t bytes, Stage stage = Stage::none);
    Buffer(Site& site, DType dtype, std::initializer_list<std::int64_t> shape, Stage stage = Stage::none)
        : Buffer(site, bytes_of(dtype, shape), stage)
    {
    }

    [[nodiscard]] Site& site() const { return *site_; }
    [[nodiscard]] std::byte* data() const { return memory_.get(); }
    [[nodiscard]] std::int64_t bytes() const { return bytes_; }
    [[nodiscard]] BufferPart all() { return {this, 0, bytes_}; }
    [[nodiscard]] BufferPart first(std::int64_t bytes) { return {this, 0, bytes}; }
    /// Null where messages need none.
    [[nodiscard]] std::byte* stage() const { return stage_.get(); }

    /// A row-major tensor at its beginning.
    [[nodiscard]] TensorView view(DType dtype, std::initializer_list<std::int64_t> shape) const
    {
        return TensorView::contiguous(memory_.get(), dtype, shape, memory());
    }
    /// One of the shape of another.
    [[nodiscard]] TensorView like(const ConstTensorView& shape, DType dtype) const
    {
        return TensorView::contiguous(memory_.get(), dtype,
                                      std::span(shape.shape).first(static_cast<std::size_t>(shape.rank)), memory());
    }
    /// Its first bytes.
    [[nodiscard]] TensorView floats(std::int64_t bytes) const
    {
        return view(DType::float32, {bytes / size_of(DType::float32)});
    }
    void clear(std::int64_t bytes); ///< the first ones, of float32, to zeros
    void clear() { clear(bytes_); }

    // Of a buffer that has a stage always.

    /// As much memory on the host: the stage, or itself.
    [[nodiscard]] std::span<std::byte> host_memory() const;
    /// Its bytes there. Waits for them.
    [[nodiscard]] std::span<std::byte> on_host();
    /// Puts what was written there where it belongs.
    void from_host();

    [[nodiscard]] static std::int64_t bytes_of(DType dtype, std::initializer_list<std::int64_t> shape);

private:
    [[nodiscard]] Memory memory() const { return site_ == nullptr ? Memory::host : site_->memory(); }
    [[nodiscard]] bool is_on_host() const { return memory() == Memory::host; }

    Site* site_ = nullptr;
    std::shared_ptr<std::byte> memory_, stage_;
    std::int64_t bytes_ = 0;
};

} // namespace flashomp::mpi
