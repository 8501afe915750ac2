#include "cache.hpp"

namespace flashomp {

std::int32_t int32_at(const ConstTensorView& view, std::int64_t n)
{
    return static_cast<const std::int32_t*>(view.data)[n];
}

std::int64_t KeyCache::pages_of(std::int64_t b) const
{
    const Options& options = problem_.options;
    if (options.kv_indices) {
        return std::int64_t{int32_at(options.kv_indptr, b + 1)} - int32_at(options.kv_indptr, b);
    }
    return options.block_table ? options.block_table.shape[1] : 1;
}

std::int64_t KeyCache::page(std::int64_t b, std::int64_t n) const
{
    const Options& options = problem_.options;
    if (options.kv_indices) {
        return int32_at(options.kv_indices, int32_at(options.kv_indptr, b) + n);
    }
    if (options.block_table) {
        return int32_at(options.block_table, b * options.block_table.strides[0] + n);
    }
    return options.cache_batch_index ? int32_at(options.cache_batch_index, b) : b;
}

std::int64_t KeyCache::length(std::int64_t b) const
{
    const Options& options = problem_.options;
    if (options.kv_indices) {
        const std::int64_t pages = pages_of(b);
        return pages == 0 ? 0 : (pages - 1) * page_rows() + int32_at(options.kv_last_page_len, b);
    }
    return options.cache_seqlens ? int32_at(options.cache_seqlens, b) : problem_.seqlen_k;
}

} // namespace flashomp
