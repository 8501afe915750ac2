// What Hopper's copy engine is told of a tensor: a map, which the CUDA driver makes (cuTensorMapEncodeTiled). No header
// of CUDA's, so that builds without the toolkit have it, too.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>

namespace flashomp::offload {

/// CUtensorMap of cuda.h.
struct alignas(64) TensorMap {
    std::array<std::uint64_t, 16> opaque{};
};

/// Whether the driver has the function.
bool has_map_encoder();

/// The map of a tensor of 1-byte or 2-byte elements, with a 128-byte swizzle and zeros beyond its ends. sizes: of the
/// axes, the innermost first, and box: how much of each the engine brings at a time. steps: elements from one index to
/// the next, of all axes but the innermost, which has 1. Null without the driver's function, and where the address or a
/// step is not whole 16 bytes.
std::optional<TensorMap> encode_map(void* data, std::int64_t element_bytes, std::span<const std::int64_t> sizes,
                                    std::span<const std::int64_t> steps, std::span<const std::uint32_t> box);

} // namespace flashomp::offload
