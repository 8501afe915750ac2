// Key/value caches: which options go together, and what their tables hold.
#include "validate_cache.hpp"

#include "cache.hpp"
#include "option_list.hpp"
#include "validate_options.hpp"
#include "validate_views.hpp"

#include <algorithm>
#include <cstdint>
#include <fmt/format.h>
#include <limits>

namespace flashomp {

namespace {

template <class Option>
void refuse_together(const char* name, const Option& given, const char* other, const ConstTensorView& beside,
                     const char* allowed)
{
    if (given && beside) {
        throw Error(fmt::format("{} was given with {}; {}.", name, other, allowed));
    }
}

/// The compressed form has three parts, and its sequences no Nk in common.
void check_compressed(const Problem& problem)
{
    const Options& options = problem.options;
    const bool is_given = options.kv_indptr || options.kv_indices || options.kv_last_page_len;
    if (!is_given) {
        return;
    }
    for (const auto& [name, view] :
         {std::pair{"kv_indptr", options.kv_indptr}, std::pair{"kv_indices", options.kv_indices},
          std::pair{"kv_last_page_len", options.kv_last_page_len}}) {
        if (!view) {
            throw Error(fmt::format(
                "{} was not given; kv_indptr, kv_indices and kv_last_page_len must be given together.", name));
        }
    }
    constexpr const char* no_nk = "sequences have no Nk in common there; allowed with it is block_table";
    refuse_together("key_padding_mask", options.key_padding_mask, "kv_indices", options.kv_indices, no_nk);
    if (options.mask && (options.mask.dtype == DType::bits || options.mask.rank != 4 || options.mask.shape[3] != 1)) {
        refuse_together("mask", options.mask, "kv_indices", options.kv_indices, no_nk);
    }
    refuse_together("block_mask", options.block_mask, "kv_indices", options.kv_indices, no_nk);
    if (options.bias && options.bias.rank == 4 && options.bias.shape[3] != 1) {
        refuse_together("bias", options.bias, "kv_indices", options.kv_indices, no_nk);
    }
    refuse_together("cache_seqlens", options.cache_seqlens, "kv_indices", options.kv_indices,
                    "kv_last_page_len has the lengths then");
}

void check_company(const Problem& problem, const char* given)
{
    const Options& options = problem.options;
    if (problem.is_backward) {
        throw Error(fmt::format("{} was given to backward; a key/value cache is allowed in forward alone.", given));
    }
    if (problem.dtype == DType::float8_e4m3) {
        throw Error(fmt::format("{} was given, but q is float8_e4m3; a key/value cache is allowed in float32, bfloat16 "
                                "and float16.",
                                given));
    }
    refuse_together("cu_seqlens_k", options.cu_seqlens_k, given, options.cu_seqlens_k,
                    "allowed with a key/value cache is cu_seqlens_q alone");
    check_compressed(problem);
    refuse_together("block_table", options.block_table, "kv_indices", options.kv_indices,
                    "they are two forms of one table, of which one is allowed");
    for (const auto& [name, view] :
         {std::pair{"block_table", options.block_table}, std::pair{"kv_indices", options.kv_indices}}) {
        refuse_together("cache_batch_index", options.cache_batch_index, name, view,
                        "it is allowed where k and v are not pages");
    }
}

} // namespace

void check_cache(Problem& problem)
{
    const Options& options = problem.options;
    if (!is_cache(problem)) {
        return;
    }
    const auto* const first =
        std::find_if(tensor_options.begin(), tensor_options.end(),
                     [&](const TensorOption& option) { return option.is_of_cache && options.*option.member; });
    check_company(problem, first != tensor_options.end() ? first->name : "k of 8 bits");
    for (const TensorOption& option : tensor_options) {
        if (option.is_of_cache && (options.*option.member).memory != Memory::host) {
            throw Error(
                fmt::format("{} is in device memory; it must be in host memory, where it is checked.", option.name));
        }
    }
    const std::int64_t page_rows = problem.k.shape[1];
    std::int64_t pages = 1; // that a sequence could have
    if (options.block_table || options.kv_indices) {
        const ConstTensorView& table = options.block_table ? options.block_table : options.kv_indices;
        const int rank = options.block_table ? 2 : 1;
        if (table.rank != rank || table.dtype != DType::int32) {
            throw Error(fmt::format("{} is {} {}; it must be int32 {}.",
                                    options.block_table ? "block_table" : "kv_indices", name_of(table.dtype),
                                    shape_string(table), options.block_table ? "[batch, pages]" : "[pages]"));
        }
        pages = table.shape.at(static_cast<std::size_t>(rank - 1));
        if (page_rows < 1) {
            throw Error(
                fmt::format("k has shape {}, pages of 0 rows; a page must have 1 or more.", shape_string(problem.k)));
        }
    } else if (!options.cache_batch_index && problem.k.shape[0] != problem.batch) {
        throw Error(fmt::format("k has {} sequences but q has {}; they must be equal where neither cache_batch_index "
                                "nor pages are given.",
                                problem.k.shape[0], problem.batch));
    }
    check_extent(options.kv_indices ? "kv_indices" : "block_table", "pages", pages, most_rows);
    const std::int64_t rows = pages * page_rows; // both are at most 2^30
    if (options.block_table) {
        check_extent("block_table", "rows in the pages of a sequence", rows, most_rows);
    }
    problem.seqlen_k = std::min(rows, most_rows);
}

namespace {

void check_indptr(const Problem& problem)
{
    const ConstTensorView& starts = problem.options.kv_indptr;
    const std::int64_t indices = problem.options.kv_indices.shape[0];
    if (int32_at(starts, 0) < 0) {
        throw Error(fmt::format("kv_indptr starts at {}; it must start at 0 or more.", int32_at(starts, 0)));
    }
    for (std::int64_t b = 0; b < problem.batch; ++b) {
        if (int32_at(starts, b + 1) < int32_at(starts, b)) {
            throw Error(fmt::format("kv_indptr decreases from {} to {} at index {}; it must not decrease.",
                                    int32_at(starts, b), int32_at(starts, b + 1), b + 1));
        }
    }
    if (int32_at(starts, problem.batch) > indices) {
        throw Error(fmt::format("kv_indptr ends at {}; it must end at {} or less, the pages that kv_indices has.",
                                int32_at(starts, problem.batch), indices));
    }
}

/// The lengths of a sequence, as the option that has it says.
void check_length(const Problem& problem, const KeyCache& cache, std::int64_t b)
{
    const Options& options = problem.options;
    if (options.kv_indices) {
        const std::int32_t rows = int32_at(options.kv_last_page_len, b);
        const std::int64_t least = cache.pages_of(b) > 0 ? 1 : 0;
        if (rows < least || rows > cache.page_rows()) {
            throw Error(fmt::format("kv_last_page_len is {} for sequence {}; allowed are {} to {}, the rows of a page.",
                                    rows, b, least, cache.page_rows()));
        }
        if (cache.length(b) > most_rows) {
            throw Error(fmt::format("kv_indptr gives sequence {} {} keys; at most {} are allowed.", b, cache.length(b),
                                    most_rows));
        }
        return;
    }
    if (const std::int64_t length = cache.length(b); length < 0 || length > problem.seqlen_k) {
        throw Error(fmt::format("cache_seqlens is {} for sequence {}; allowed are 0 to {}, the rows of its cache.",
                                length, b, problem.seqlen_k));
    }
}

} // namespace

CacheScales::CacheScales(const Problem& problem)
    : page_word_(!has_pages(problem.options)                            ? "sequence"
                 : static_cast<bool>(problem.options.cache_batch_index) ? "cache"
                                                                        : "page")
{
    const auto scale_of = [&](const char* name, const ConstTensorView& view) {
        const bool is_there = problem.is_quantised() && view && view.memory == Memory::host;
        // Heads as the scales count them, for runs of a prepared call know no others.
        const std::int64_t heads = is_there ? view.shape[static_cast<std::size_t>(view.rank) - 1] : 0;
        return Scale{name, static_cast<const float*>(view.data), heads, view.rank == 2 ? view.strides[0] : 0,
                     is_there ? view.rank : 0};
    };
    scales_ = {scale_of("k_scale", problem.options.k_scale), scale_of("v_scale", problem.options.v_scale)};
}

void CacheScales::ask_for(std::int64_t page) const
{
    for (const Scale& scale : scales_) {
        if (scale.rank == 2) {
            __builtin_prefetch(scale.data + page * scale.stride);
        }
    }
}

void CacheScales::check(int rank, std::int64_t page) const
{
    const auto is_allowed = [](float x) -> bool { return (x > 0.0F) & (x <= std::numeric_limits<float>::max()); };
    for (const Scale& scale : scales_) {
        if (scale.rank != rank) {
            continue;
        }
        const float* const of_heads = scale.data + page * scale.stride;
        bool all = true;
        for (std::int64_t head = 0; head < scale.heads; ++head) { // no way out of the loop, so that it is vectors
            all = all & is_allowed(of_heads[head]);
        }
        if (!all) {
            const float* const bad = std::find_if_not(of_heads, of_heads + scale.heads, is_allowed);
            throw Error(fmt::format("{} is {} for {}key head {}; it must be a finite number above 0.", scale.name, *bad,
                                    rank == 2 ? fmt::format("{} {}, ", page_word_, page) : "", bad - of_heads));
        }
    }
}

void check_cache_values(const Problem& problem)
{
    if (!is_cache(problem)) {
        return;
    }
    const Options& options = problem.options;
    const KeyCache cache(problem);
    if (options.kv_indices) {
        check_indptr(problem);
    }
    const CacheScales scales(problem);
    scales.check_common();
    const char* const table =
        options.kv_indices ? "kv_indices" : (options.block_table ? "block_table" : "cache_batch_index");
    const std::int64_t pages = problem.k.shape[0];
    for (std::int64_t b = 0; b < problem.batch; ++b) {
        check_length(problem, cache, b);
        // What is beyond the sequence's keys is not looked at here, nor by anybody else.
        const std::int64_t rows = cache.page_rows();
        const std::int64_t used = rows == 0 ? 0 : (cache.length(b) + rows - 1) / rows;
        for (std::int64_t n = 0; n < used; ++n) {
            const std::int64_t page = cache.page(b, n);
            if (page < 0 || page >= pages) {
                throw Error(fmt::format("{} is {} for page {} of sequence {}; allowed are 0 to {}, the {} of k.", table,
                                        page, n, b, pages - 1, options.cache_batch_index ? "caches" : "pages"));
            }
        }
        // Pages lie anywhere: without asking ahead, the check of a page a key waits for memory as long as a third of
        // the call.
        constexpr std::int64_t ahead = 16;
        for (std::int64_t n = 0; scales.are_of_pages() && n < used; ++n) {
            if (n + ahead < used) {
                scales.ask_for(cache.page(b, n + ahead));
            }
            scales.check_page(cache.page(b, n));
        }
    }
}

} // namespace flashomp
