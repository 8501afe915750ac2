// New rows of a key/value cache: from where they are to where their sequence's table says, turned on the way (rotary
// embedding), and divided by their scale where the cache has 8 bits. Once for host threads, target regions and CUDA.
#pragma once

#include "algorithm/element.hpp"
#include "algorithm/team_memory.hpp"

#include <type_traits>

#pragma omp declare target

namespace flashomp::offload {

/// One append() (flashomp/cache.hpp).
struct AppendParams {
    int batch = 0, heads_kv = 0, heads_q = 0;
    int rows = 0, rows_q = 0; ///< new ones of a sequence; when packed, of the longest
    int head_dim = 0, head_dim_v = 0;
    int pairs = 0; ///< that turn, of a row of k and q
    Element element = Element::float32, angle_element = Element::float32;
    Tensor k, v, k_cache, v_cache, q, q_out; ///< no q: rows_q is 0
    const std::int32_t* cu_seqlens_k = nullptr;
    const std::int32_t* cu_seqlens_q = nullptr;
    const std::int32_t* places = nullptr; ///< of each sequence's first new row
    CacheTables cache;                    ///< without lengths
    const void *cos = nullptr, *sin = nullptr;
    std::int64_t cos_stride = 0, sin_stride = 0;
    bool is_interleaved = true;
    bool q_moves = true; ///< rows of q have positions one after the other
};

/// A row on its way. Without slots: there is no such row.
struct AppendRow {
    const void* from = nullptr;
    void* to = nullptr;
    std::int64_t from_offset = 0, to_offset = 0, cos_offset = 0, sin_offset = 0;
    int pairs = 0, slots = 0;                  ///< slots: the pairs, then single elements
    CacheElement element = CacheElement::as_q; ///< of `to`
    float scale = 1.0F;
};

/// Rows of k, v and q, one after the other.
FLASHOMP_INLINE std::int64_t append_units(const AppendParams& p)
{
    return std::int64_t{p.batch} * (2 * std::int64_t{p.rows} * p.heads_kv + std::int64_t{p.rows_q} * p.heads_q);
}

FLASHOMP_INLINE AppendRow append_row(const AppendParams& p, std::int64_t unit)
{
    const std::int64_t of_one = std::int64_t{p.batch} * p.rows * p.heads_kv;
    const int which = unit < of_one ? 0 : (unit < 2 * of_one ? 1 : 2); // k, v, q
    const std::int64_t index = unit - which * of_one;
    const int heads = which == 2 ? p.heads_q : p.heads_kv;
    const int rows = which == 2 ? p.rows_q : p.rows;
    const auto head = static_cast<int>(index % heads);
    const auto i = static_cast<int>(index / heads % rows);
    const auto batch = static_cast<int>(index / heads / rows);
    const std::int32_t* const starts = which == 2 ? p.cu_seqlens_q : p.cu_seqlens_k;
    const int first = starts != nullptr ? starts[batch] : 0;
    AppendRow row;
    if (starts != nullptr && i >= starts[batch + 1] - first) {
        return row;
    }
    const Tensor& from = which == 2 ? p.q : (which == 1 ? p.v : p.k);
    const Tensor& to = which == 2 ? p.q_out : (which == 1 ? p.v_cache : p.k_cache);
    const int depth = which == 1 ? p.head_dim_v : p.head_dim;
    row.from = from.data;
    row.to = to.data;
    row.from_offset = batch * from.batch + (first + i) * from.row + head * from.head;
    row.pairs = which == 1 ? 0 : p.pairs;
    row.slots = depth - row.pairs;
    const int place = p.places[batch] + (which == 2 && !p.q_moves ? 0 : i);
    row.cos_offset = place * p.cos_stride;
    row.sin_offset = place * p.sin_stride;
    if (which == 2) {
        row.to_offset = batch * to.batch + (first + i) * to.row + head * to.head;
        return row;
    }
    const CacheTables& cache = p.cache;
    std::int64_t page = batch;
    int in_page = place;
    if (cache.pages != nullptr) {
        const std::int64_t table = cache.starts != nullptr ? cache.starts[batch] : batch * cache.stride;
        page = cache.pages[table + place / cache.page_rows];
        in_page = place % cache.page_rows;
    }
    row.to_offset = page * to.batch + in_page * to.row + head * to.head;
    row.element = cache.element;
    const float* const scales = which == 1 ? cache.v_scale : cache.k_scale;
    if (scales != nullptr) {
        row.scale = scales[page * (which == 1 ? cache.v_scale_stride : cache.k_scale_stride) + head];
    }
    return row;
}

/// T: of the new row; C: of the place, T itself or 8 bits.
template <class T, class C>
FLASHOMP_INLINE void append_slot_as(const AppendParams& p, const AppendRow& row, int x)
{
    constexpr bool is_quantised = !std::is_same_v<T, C>;
    const T* const from = static_cast<const T*>(row.from) + row.from_offset;
    C* const to = static_cast<C*>(row.to) + row.to_offset;
    if (x >= row.pairs) {
        if constexpr (is_quantised) {
            from_float(to_float(from[x + row.pairs]) / row.scale, to[x + row.pairs]);
        } else {
            to[x + row.pairs] = from[x + row.pairs];
        }
        return;
    }
    const int one = p.is_interleaved ? 2 * x : x;
    const int other = p.is_interleaved ? 2 * x + 1 : x + row.pairs;
    const float cos = read_element(p.cos, p.angle_element, row.cos_offset + x);
    const float sin = read_element(p.sin, p.angle_element, row.sin_offset + x);
    const float a = to_float(from[one]); // both, before either is written: q_out may be q
    const float b = to_float(from[other]);
    float turned_a = a * cos - b * sin;
    float turned_b = a * sin + b * cos;
    if constexpr (is_quantised) {
        turned_a /= row.scale;
        turned_b /= row.scale;
    }
    from_float(turned_a, to[one]);
    from_float(turned_b, to[other]);
}

template <class T>
FLASHOMP_INLINE void append_slot(const AppendParams& p, const AppendRow& row, int x)
{
    switch (row.element) {
    case CacheElement::as_q:
        return append_slot_as<T, T>(p, row, x);
    case CacheElement::float8_e4m3:
        return append_slot_as<T, Float8>(p, row, x);
    case CacheElement::int8:
        return append_slot_as<T, Int8>(p, row, x);
    }
}

/// One row, by all threads of a crew together.
FLASHOMP_INLINE void append_one(const AppendParams& p, std::int64_t unit)
{
    const AppendRow row = append_row(p, unit);
    const int slots = row.slots;
    FLASHOMP_FOR_CREW (x, slots) {
        switch (p.element) {
        case Element::float32:
            append_slot<float>(p, row, x);
            break;
        case Element::bfloat16:
            append_slot<BFloat16>(p, row, x);
            break;
        case Element::float16:
            append_slot<Float16>(p, row, x);
            break;
        }
    }
}

} // namespace flashomp::offload

#pragma omp end declare target
