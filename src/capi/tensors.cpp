#include "tensors.hpp"

#include <array>
#include <cstddef>
#include <fmt/format.h>
#include <type_traits>

namespace flashomp::capi {

namespace {

// A pointer to a DLTensor may be given for a pointer to a flashomp_tensor.
static_assert(std::is_standard_layout_v<flashomp_tensor>);
static_assert(sizeof(flashomp_tensor) == 48 && offsetof(flashomp_tensor, data) == 0 &&
              offsetof(flashomp_tensor, device) == 8 && offsetof(flashomp_tensor, ndim) == 16 &&
              offsetof(flashomp_tensor, dtype) == 20 && offsetof(flashomp_tensor, shape) == 24 &&
              offsetof(flashomp_tensor, strides) == 32 && offsetof(flashomp_tensor, byte_offset) == 40);

struct Coded {
    flashomp_dtype_code code;
    int bits;
    DType dtype;
};

constexpr std::array<Coded, 10> codes{{{FLASHOMP_FLOAT, 32, DType::float32},
                                       {FLASHOMP_BFLOAT, 16, DType::bfloat16},
                                       {FLASHOMP_FLOAT, 16, DType::float16},
                                       {FLASHOMP_FLOAT8_E4M3FN, 8, DType::float8_e4m3},
                                       {FLASHOMP_FLOAT, 64, DType::float64},
                                       {FLASHOMP_INT, 8, DType::int8},
                                       {FLASHOMP_INT, 32, DType::int32},
                                       {FLASHOMP_INT, 64, DType::int64},
                                       {FLASHOMP_BOOL, 8, DType::boolean},
                                       {FLASHOMP_BOOL, 1, DType::bits}}};

/// Addresses of a process are less.
constexpr std::uint64_t most_offset = std::uint64_t{1} << 56U;

void* begin_of(const char* name, const flashomp_tensor& given)
{
    if (given.data == nullptr) {
        return nullptr;
    }
    if (given.byte_offset > most_offset) {
        throw Error(fmt::format("{} has byte_offset {}; it must be at most 2^56.", name, given.byte_offset));
    }
    return static_cast<std::byte*>(given.data) + given.byte_offset;
}

} // namespace

DType dtype_of(const char* name, const flashomp_dtype& given)
{
    if (given.lanes != 1) {
        throw Error(fmt::format("{} has a dtype of {} lanes; it must be 1.", name, given.lanes));
    }
    for (const Coded& coded : codes) {
        if (given.code == coded.code && given.bits == coded.bits) {
            return coded.dtype;
        }
    }
    throw Error(fmt::format("{} has dtype code {} with {} bits; allowed are FLASHOMP_FLOAT with 16, 32 or 64, "
                            "FLASHOMP_BFLOAT with 16, FLASHOMP_FLOAT8_E4M3FN with 8, FLASHOMP_INT with 8, 32 or 64 and "
                            "FLASHOMP_BOOL with 8 or, packed, 1.",
                            name, given.code, given.bits));
}

Memory Views::memory_of(const char* name, const flashomp_device& device)
{
    switch (device.device_type) {
    case FLASHOMP_CPU:
    case FLASHOMP_CUDA_HOST:
        return Memory::host;
    case FLASHOMP_CUDA_MANAGED:
        if (!managed_is_gpus_) {
            return Memory::host;
        }
        break;
    case FLASHOMP_CUDA:
        break;
    default:
        throw Error(fmt::format("{} has device_type {}; allowed are {} (FLASHOMP_CPU), {} (FLASHOMP_CUDA), {} "
                                "(FLASHOMP_CUDA_HOST) and {} (FLASHOMP_CUDA_MANAGED).",
                                name, device.device_type, static_cast<int>(FLASHOMP_CPU),
                                static_cast<int>(FLASHOMP_CUDA), static_cast<int>(FLASHOMP_CUDA_HOST),
                                static_cast<int>(FLASHOMP_CUDA_MANAGED)));
    }
    if (device.device_id < 0) {
        throw Error(
            fmt::format("{} has device_id {}; it must be the number of a GPU, 0 or more.", name, device.device_id));
    }
    if (name_on_gpu_ == nullptr) {
        name_on_gpu_ = name;
        gpu_ = device.device_id;
    } else if (device.device_id != gpu_) {
        throw Error(fmt::format("{} is on GPU {}, but {} is on GPU {}; all tensors of a call that are on a GPU must be "
                                "on one.",
                                name, device.device_id, name_on_gpu_, gpu_));
    }
    return Memory::device;
}

TensorView Views::operator()(const char* name, const flashomp_tensor* given)
{
    if (given == nullptr || given->ndim == 0) {
        return {};
    }
    if (given->ndim < 0 || given->ndim > TensorView::max_rank) {
        throw Error(
            fmt::format("{} has ndim {}; it must be 0 (not given) to {}.", name, given->ndim, TensorView::max_rank));
    }
    if (given->shape == nullptr) {
        throw Error(fmt::format("{} has ndim {} but its shape is null; it must point to {} extents.", name, given->ndim,
                                given->ndim));
    }
    const DType dtype = dtype_of(name, given->dtype);
    const Memory memory = memory_of(name, given->device);
    void* const data = begin_of(name, *given);
    const std::span<const std::int64_t> shape(given->shape, static_cast<std::size_t>(given->ndim));
    if (given->strides == nullptr) {
        return TensorView::contiguous(data, dtype, shape, memory);
    }
    return {data, dtype, shape, std::span<const std::int64_t>(given->strides, shape.size()), memory};
}

} // namespace flashomp::capi
