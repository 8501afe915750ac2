// The maps of the tensors that the Hopper kernels read.
#pragma once

#include "algorithm/params.hpp"
#include "launch/tensor_map.hpp"

#include <bit>
#include <cuda.h>
#include <optional>

namespace flashomp::cuda {

/// A tensor as [batch, head, row, depth], and bytes of an element, 2 or 1.
struct Extent {
    std::int64_t batch, heads, rows, depth;
    int bytes = 2;
};

/// Whether every row of every head can be read in 16-byte chunks.
inline bool is_whole(const offload::Tensor& tensor, const Extent& extent)
{
    const std::int64_t elements = 16 / extent.bytes;
    const auto is_step = [&](std::int64_t stride, std::int64_t count) {
        return count == 1 || (stride > 0 && stride % elements == 0 && extent.bytes * stride < std::int64_t{1} << 40);
    };
    return reinterpret_cast<std::uintptr_t>(tensor.data) % 16 == 0 && extent.depth % elements == 0 &&
           is_step(tensor.row, extent.rows) && is_step(tensor.head, extent.heads) &&
           is_step(tensor.batch, extent.batch);
}

/// The map whose boxes are 128 bytes of `box_rows` rows, with a 128-byte swizzle; zeros beyond the tensor.
inline std::optional<CUtensorMap> map_of(const offload::Tensor& tensor, const Extent& extent, int box_rows)
{
    const std::int64_t sizes[] = {extent.depth, extent.rows, extent.heads, extent.batch};
    const std::int64_t steps[] = {tensor.row, tensor.head, tensor.batch};
    const std::uint32_t box[] = {128U / static_cast<unsigned>(extent.bytes), static_cast<std::uint32_t>(box_rows), 1,
                                 1};
    const auto map = offload::encode_map(tensor.data, extent.bytes, sizes, steps, box);
    return map ? std::optional(std::bit_cast<CUtensorMap>(*map)) : std::nullopt;
}

} // namespace flashomp::cuda
