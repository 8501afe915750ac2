// Block masks of the C interface.
#include "block_mask.hpp"

#include "status.hpp"
#include "tensors.hpp"

#include <cstddef>
#include <fmt/format.h>
#include <span>

namespace flashomp::capi {

namespace {

/// Makes a mask, and gives it to the caller.
template <class Make>
flashomp_status guarded_make(flashomp_block_mask** block_mask, Make make)
{
    return guarded([&] {
        if (block_mask == nullptr) {
            throw Error("block_mask was null; it must point to a flashomp_block_mask*.");
        }
        *block_mask = nullptr;
        *block_mask = new flashomp_block_mask{make()};
    });
}

/// `count` numbers at an address.
template <class Number>
std::span<const Number> numbers(const char* name, const Number* first, std::int64_t count)
{
    if (count < 0) {
        throw Error(fmt::format("{} was {}; it must be 0 or more.", name, count));
    }
    if (first == nullptr && count > 0) {
        throw Error(fmt::format("{} was null; it must point to {} numbers.", name, count));
    }
    return {first, static_cast<std::size_t>(count)};
}

} // namespace

BlockMask block_mask_of(const flashomp_block_mask* given)
{
    return given == nullptr ? BlockMask{} : given->mask;
}

} // namespace flashomp::capi

using namespace flashomp::capi;

flashomp_status flashomp_block_mask_from_mask(const flashomp_tensor* mask, int64_t block_q, int64_t block_k,
                                              flashomp_block_mask** block_mask)
{
    return guarded_make(block_mask, [&] {
        Views views(false);
        return flashomp::BlockMask::from_mask(views("mask", mask), block_q, block_k);
    });
}

flashomp_status flashomp_block_mask_from_documents(const flashomp_tensor* ids, int causal, int64_t block_q,
                                                   int64_t block_k, flashomp_block_mask** block_mask)
{
    return guarded_make(block_mask, [&] {
        Views views(false);
        const flashomp::ConstTensorView view = views("ids", ids);
        const bool is_contiguous = view.rank == 2 && (view.shape[1] <= 1 || view.strides[1] == 1) &&
                                   (view.shape[0] <= 1 || view.strides[0] == view.shape[1]);
        if (!is_contiguous || view.dtype != flashomp::DType::int32 || view.memory != flashomp::Memory::host ||
            view.shape[0] < 0 || view.shape[1] < 0 || (view.data == nullptr && view.elements() > 0)) {
            throw flashomp::Error(fmt::format("ids is {} {}; it must be int32 [B, N], row-major in host memory.",
                                              flashomp::name_of(view.dtype), flashomp::shape_string(view)));
        }
        if (causal != 0 && causal != 1) {
            throw flashomp::Error(fmt::format("causal was {}; it must be 0 or 1.", causal));
        }
        return flashomp::BlockMask::from_documents(
            numbers("ids", static_cast<const std::int32_t*>(view.data), view.elements()), view.shape[0], causal == 1,
            block_q, block_k);
    });
}

flashomp_status flashomp_block_mask_from_blocks(int64_t batch, int64_t heads_q, int64_t seqlen_q, int64_t seqlen_k,
                                                int64_t block_q, int64_t block_k, const int64_t* starts,
                                                int64_t start_count, const int32_t* blocks,
                                                const int32_t* bits_of_block, int64_t block_count, const uint8_t* bits,
                                                int64_t bit_bytes, flashomp_block_mask** block_mask)
{
    return guarded_make(block_mask, [&] {
        return flashomp::BlockMask::from_blocks(
            {batch, heads_q, seqlen_q, seqlen_k, block_q, block_k}, numbers("starts", starts, start_count),
            numbers("blocks", blocks, block_count), numbers("bits_of_block", bits_of_block, block_count),
            numbers("bits", bits, bit_bytes));
    });
}

void flashomp_block_mask_free(flashomp_block_mask* block_mask)
{
    delete block_mask;
}
