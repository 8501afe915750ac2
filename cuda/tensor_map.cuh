// What the copy engine is told of a tensor: a map, made by the driver.
#pragma once

#include "algorithm/params.hpp"

#include <cuda.h>
#include <cuda_runtime.h>

#include <optional>

namespace flashomp::cuda {

/// A tensor as [batch, head, row, depth], and bytes of an element, 2 or 1.
struct Extent {
    std::int64_t batch, heads, rows, depth;
    int bytes = 2;
};

inline auto map_encoder()
{
    static const auto found = [] {
        void* function = nullptr;
        cudaDriverEntryPointQueryResult result{};
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &result);
        return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function);
    }();
    return found;
}

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
    const std::int64_t sizes[4] = {extent.depth, extent.rows, extent.heads, extent.batch};
    const std::int64_t steps[3] = {tensor.row, tensor.head, tensor.batch};
    cuuint64_t counts[4], strides[3];
    for (int axis = 0; axis < 4; ++axis) {
        counts[axis] = static_cast<cuuint64_t>(sizes[axis]);
    }
    for (int axis = 0; axis < 3; ++axis) {
        // Nobody takes a second step along an axis of one, whatever its stride.
        strides[axis] = sizes[axis + 1] == 1 ? 16 : static_cast<cuuint64_t>(extent.bytes * steps[axis]);
    }
    const cuuint32_t box[4] = {128U / static_cast<cuuint32_t>(extent.bytes), static_cast<cuuint32_t>(box_rows), 1, 1};
    const cuuint32_t every[4] = {1, 1, 1, 1};
    CUtensorMap map{};
    const auto encode = map_encoder();
    if (encode == nullptr ||
        encode(&map, extent.bytes == 2 ? CU_TENSOR_MAP_DATA_TYPE_UINT16 : CU_TENSOR_MAP_DATA_TYPE_UINT8, 4, tensor.data,
               counts, strides, box, every, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
               CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) != CUDA_SUCCESS) {
        return {};
    }
    return map;
}

} // namespace flashomp::cuda
