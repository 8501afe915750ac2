// What the kernels of a call read besides its tensors, brought to the device by one copy.
#pragma once

#include "workspace.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <type_traits>
#include <vector>

namespace flashomp {

/// A piece of a space's memory that is put together on the host. Objects are reserved first, since those that point to
/// others must know where all will be; then place() finds the memory, write() fills the image and send() copies it,
/// once: each copy in front of a launch takes microseconds of its own.
class Image {
public:
    explicit Image(const Space& space) : space_(space) {}

    /// Room for so many objects, all zeros. Returns where, in bytes from the image's start: a multiple of 64, as tensor
    /// maps ask.
    template <class T>
    std::int64_t reserve(std::size_t count = 1)
    {
        static_assert(std::is_trivially_copyable_v<T>);
        constexpr std::size_t granule = 64;
        const std::size_t at = here_.size();
        here_.resize(at + (count * sizeof(T) + granule - 1) / granule * granule);
        return static_cast<std::int64_t>(at);
    }

    /// Ends the reserving. Throws RunFailure where the space has no memory left.
    void place() { there_.emplace(static_cast<std::int64_t>(here_.size()), space_); }

    /// Where kernels find what was reserved.
    template <class T>
    [[nodiscard]] T* address(std::int64_t at) const
    {
        return reinterpret_cast<T*>(static_cast<std::byte*>(there_->data()) + at);
    }

    template <class T>
    void write(std::int64_t at, const T* objects, std::size_t count = 1)
    {
        static_assert(std::is_trivially_copyable_v<T>);
        write_bytes(at, objects, count * sizeof(T));
    }

    void send() { copy_in(there_->data(), space_, here_.data(), static_cast<std::int64_t>(here_.size())); }

private:
    void write_bytes(std::int64_t at, const void* bytes, std::size_t count);

    Space space_;
    std::vector<std::byte> here_;
    std::optional<Workspace> there_;
};

} // namespace flashomp
