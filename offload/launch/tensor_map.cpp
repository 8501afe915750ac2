#include "launch/tensor_map.hpp"

#include <dlfcn.h>

namespace flashomp::offload {

namespace {

using Encode = int (*)(TensorMap*, int type, std::uint32_t rank, void* address, const std::uint64_t* sizes,
                       const std::uint64_t* strides, const std::uint32_t* box, const std::uint32_t* steps,
                       int interleave, int swizzle, int promotion, int fill);

/// The driver's function, or null.
Encode encoder()
{
    static const Encode found = [] {
        void* driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL); // stays open: libgomp uses it, too
        return driver == nullptr ? nullptr : reinterpret_cast<Encode>(dlsym(driver, "cuTensorMapEncodeTiled"));
    }();
    return found;
}

} // namespace

bool has_map_encoder()
{
    return encoder() != nullptr;
}

std::optional<TensorMap> encode_map(void* data, std::int64_t element_bytes, std::span<const std::int64_t> sizes,
                                    std::span<const std::int64_t> steps, std::span<const std::uint32_t> box)
{
    constexpr std::size_t most_axes = 5;
    constexpr std::int64_t alignment = 16, longest_stride = std::int64_t{1} << 40;
    // Numbers of cuda.h's enums.
    const int type = element_bytes == 1 ? 0 : 1; // unsigned integers
    constexpr int no_interleave = 0, swizzle_128_bytes = 3, promote_to_256_bytes = 3, fill_zeros = 0;
    if (!has_map_encoder() || reinterpret_cast<std::uintptr_t>(data) % alignment != 0) {
        return {};
    }
    std::array<std::uint64_t, most_axes> counts{}, strides{};
    for (std::size_t axis = 0; axis < sizes.size(); ++axis) {
        if (sizes[axis] < 1) {
            return {};
        }
        counts[axis] = static_cast<std::uint64_t>(sizes[axis]);
    }
    for (std::size_t axis = 0; axis < steps.size(); ++axis) {
        // Nobody takes a second step along an axis of one, whatever its stride.
        const std::int64_t bytes = sizes[axis + 1] == 1 ? alignment : steps[axis] * element_bytes;
        if (bytes <= 0 || bytes % alignment != 0 || bytes >= longest_stride) {
            return {};
        }
        strides[axis] = static_cast<std::uint64_t>(bytes);
    }
    constexpr std::array<std::uint32_t, most_axes> every{1, 1, 1, 1, 1};
    TensorMap map{};
    const int status =
        encoder()(&map, type, static_cast<std::uint32_t>(sizes.size()), data, counts.data(), strides.data(), box.data(),
                  every.data(), no_interleave, swizzle_128_bytes, promote_to_256_bytes, fill_zeros);
    return status == 0 ? std::optional<TensorMap>(map) : std::nullopt;
}

} // namespace flashomp::offload
