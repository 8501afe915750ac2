// Operands for the CPU's bfloat16 matrix instructions, packed from memory with AVX-512.
//
// A number is a sum of terms that are bfloat16: one for bfloat16 itself, two for float16, three for float32. The first
// term is the number's first 8 significant bits, cut off and not rounded, the next what then is left, so that three
// terms hold all 24 bits of a float32 and two all 11 of a float16. A term below 2^-126 counts as 0 in the products:
// float32 inputs below 2^-110 lose their last bits.
//
// The instructions multiply pairs of neighbours along the inner dimension. Both operands are cut into blocks of 1 KB:
// 16 rows of 16 pairs. A left operand has the pairs of one row in a row; a right operand has in a row one pair of each
// column. Each is the other's transpose, with pairs for elements.
#pragma once

#include "algorithm/element.hpp"

#include <immintrin.h>

namespace flashomp::offload {

/// 16 rows of 16 pairs of bfloat16.
struct alignas(64) PairBlock {
    enum : int { rows = 16, elements = 32 }; // elements of the inner dimension
    __m512i row[rows];
};

constexpr int terms_of(Element element)
{
    return element == Element::bfloat16 ? 1 : (element == Element::float16 ? 2 : 3);
}

/// The first `count` of 16 elements as floats, zeros beyond.
FLASHOMP_INLINE __m512 load_lanes(const float* source, int count)
{
    const auto there = static_cast<__mmask16>(count >= 16 ? 0xFFFF : (count <= 0 ? 0 : (1 << count) - 1));
    return _mm512_maskz_loadu_ps(there, source);
}
FLASHOMP_INLINE __m512 load_lanes(const BFloat16* source, int count)
{
    const auto there = static_cast<__mmask16>(count >= 16 ? 0xFFFF : (count <= 0 ? 0 : (1 << count) - 1));
    const __m512i bits = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(there, source));
    return _mm512_castsi512_ps(_mm512_slli_epi32(bits, 16));
}
FLASHOMP_INLINE __m512 load_lanes(const Float16* source, int count)
{
    const auto there = static_cast<__mmask16>(count >= 16 ? 0xFFFF : (count <= 0 ? 0 : (1 << count) - 1));
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(there, source));
}

/// Writes the first `count` of 16 floats, rounded to the element type.
FLASHOMP_INLINE void store_lanes(float* target, int count, __m512 x)
{
    _mm512_mask_storeu_ps(target, static_cast<__mmask16>(count >= 16 ? 0xFFFF : (1 << count) - 1), x);
}
FLASHOMP_INLINE void store_lanes(BFloat16* target, int count, __m512 x)
{
    // vcvtneps2bf16 would make 0 of a denormal.
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i up = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7FFF)), odd);
    const __mmask16 is_nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    const __m512i rounded = _mm512_mask_or_epi32(up, is_nan, bits, _mm512_set1_epi32(0x400000));
    _mm256_mask_storeu_epi16(target, static_cast<__mmask16>(count >= 16 ? 0xFFFF : (1 << count) - 1),
                             _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16)));
}
FLASHOMP_INLINE void store_lanes(Float16* target, int count, __m512 x)
{
    _mm256_mask_storeu_epi16(target, static_cast<__mmask16>(count >= 16 ? 0xFFFF : (1 << count) - 1),
                             _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

/// Pairs (even[i], odd[i]) of a term of two vectors, of which this takes the term away.
FLASHOMP_INLINE __m512i take_term(__m512& even, __m512& odd)
{
    const __m512i high = _mm512_set1_epi32(static_cast<int>(0xFFFF0000U));
    const __m512i first = _mm512_and_si512(_mm512_castps_si512(even), high);
    const __m512i second = _mm512_and_si512(_mm512_castps_si512(odd), high);
    even = _mm512_sub_ps(even, _mm512_castsi512_ps(first));
    odd = _mm512_sub_ps(odd, _mm512_castsi512_ps(second));
    return _mm512_or_si512(_mm512_srli_epi32(first, 16), second);
}

/// Pairs (even[i], odd[i]), cut off.
FLASHOMP_INLINE __m512i upper_pairs(__m512 even, __m512 odd)
{
    return _mm512_mask_blend_epi16(0xAAAAAAAA, _mm512_srli_epi32(_mm512_castps_si512(even), 16),
                                   _mm512_castps_si512(odd));
}

/// Pairs (even[i], odd[i]), rounded to nearest even.
FLASHOMP_INLINE __m512i rounded_pairs(__m512 even, __m512 odd)
{
    const auto low = _mm512_cvtepu16_epi32(reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(even)));
    const auto high = _mm512_cvtepu16_epi32(reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(odd)));
    return _mm512_or_si512(low, _mm512_slli_epi32(high, 16));
}

/// Terms of pairs (even[i], odd[i]), one to each plane. Three hold all bits; of fewer the last one is rounded.
template <int terms>
FLASHOMP_INLINE void store_pairs(__m512 even, __m512 odd, PairBlock* block, std::ptrdiff_t plane, int row)
{
#pragma GCC unroll 3
    for (int t = 0; t < terms - 1; ++t) {
        block[t * plane].row[row] = take_term(even, odd);
    }
    if constexpr (terms == 3) { // what is left has low bits only where it is denormal
        block[2 * plane].row[row] = upper_pairs(even, odd);
    } else {
        block[(terms - 1) * plane].row[row] = rounded_pairs(even, odd);
    }
}

/// For each of 16 rows, three times 2^22 units of the grid that the first terms of its elements are on.
struct RowGrids {
    float shift[PairBlock::rows];
};

/// Grids on which each row's largest element has 8 bits: 2^E·2^-7 for an element from 2^E on. A first term is then at
/// most 2^8 units, and a sum of 256 products of two is at most 2^24 units: whole numbers that a float holds. Longer
/// rows have twice the unit: 2^7 units each, and sums of up to 1024 products. Infinity and NaN give grids that make NaN
/// of the row.
FLASHOMP_INLINE RowGrids row_grids(const float* source, std::ptrdiff_t stride, int count, int depth)
{
    RowGrids grids{};
    const float units = depth <= 256 ? 98304.0F : 196608.0F; // 3·2^22·2^-7 or ·2^-6
    for (int i = 0; i < PairBlock::rows && i < count; ++i) {
        const float* row = source + i * stride;
        __m512 top = _mm512_setzero_ps();
        for (int x = 0; x < depth; x += 16) {
            top = _mm512_max_ps(_mm512_abs_ps(load_lanes(row + x, depth - x)), top);
        }
        const __m128i most = _mm_castps_si128(_mm_set_ss(_mm512_reduce_max_ps(top)));
        const __m128 power = _mm_castsi128_ps(_mm_and_si128(most, _mm_cvtsi32_si128(0x7F800000)));
        grids.shift[i] = _mm_cvtss_f32(power) * units;
    }
    return grids;
}

/// Pairs (even[i], odd[i]) rounded to a grid, which is what adding the shift and taking it away does; this takes them
/// away from the vectors.
FLASHOMP_INLINE __m512i take_slice(__m512& even, __m512& odd, __m512 shift)
{
    const __m512 first = _mm512_sub_ps(_mm512_add_ps(even, shift), shift);
    const __m512 second = _mm512_sub_ps(_mm512_add_ps(odd, shift), shift);
    even = _mm512_sub_ps(even, first);
    odd = _mm512_sub_ps(odd, second);
    return _mm512_or_si512(_mm512_srli_epi32(_mm512_castps_si512(first), 16), _mm512_castps_si512(second));
}

/// Even and odd elements of 32 that follow one another.
FLASHOMP_INLINE void part_pairs(__m512& first, __m512& second)
{
    const __m512i evens = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    const __m512 even = _mm512_permutex2var_ps(first, evens, second);
    second = _mm512_permutex2var_ps(first, _mm512_add_epi32(evens, _mm512_set1_epi32(1)), second);
    first = even;
}

/// Transposes 16 x 16 pairs, or floats.
FLASHOMP_INLINE void transpose(__m512i (&x)[16])
{
    __m512i y[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; i += 2) {
        y[i] = _mm512_unpacklo_epi32(x[i], x[i + 1]);
        y[i + 1] = _mm512_unpackhi_epi32(x[i], x[i + 1]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < 16; i += 4) {
        x[i] = _mm512_unpacklo_epi64(y[i], y[i + 2]);
        x[i + 1] = _mm512_unpackhi_epi64(y[i], y[i + 2]);
        x[i + 2] = _mm512_unpacklo_epi64(y[i + 1], y[i + 3]);
        x[i + 3] = _mm512_unpackhi_epi64(y[i + 1], y[i + 3]);
    }
    // Now x[4g + j] has, in its quarter q, column 4q + j of rows 4g to 4g + 3.
#pragma GCC unroll 16
    for (int j = 0; j < 4; ++j) {
        const __m512i a = _mm512_shuffle_i32x4(x[j], x[4 + j], 0x88);      // quarters 0 and 2 of rows 0-3, 4-7
        const __m512i b = _mm512_shuffle_i32x4(x[j], x[4 + j], 0xDD);      // 1 and 3
        const __m512i c = _mm512_shuffle_i32x4(x[8 + j], x[12 + j], 0x88); // rows 8-11, 12-15
        const __m512i d = _mm512_shuffle_i32x4(x[8 + j], x[12 + j], 0xDD);
        y[j] = _mm512_shuffle_i32x4(a, c, 0x88);
        y[4 + j] = _mm512_shuffle_i32x4(b, d, 0x88);
        y[8 + j] = _mm512_shuffle_i32x4(a, c, 0xDD);
        y[12 + j] = _mm512_shuffle_i32x4(b, d, 0xDD);
    }
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) {
        x[i] = y[i];
    }
}

FLASHOMP_INLINE void transpose(PairBlock& block)
{
    transpose(block.row);
}

/// A block whose row i has the pairs along source row i: elements [0, depth) of `count` rows, zeros beyond.
template <int terms, class T>
FLASHOMP_INLINE void pack_along(const T* source, std::ptrdiff_t stride, int count, int depth, PairBlock* block,
                                std::ptrdiff_t plane)
{
    for (int i = 0; i < PairBlock::rows; ++i) {
        const T* row = source + i * stride;
        const int there = i < count ? depth : 0;
        if constexpr (terms == 1 && sizeof(T) == 2) {
            const auto mask = static_cast<__mmask32>(there >= 32 ? 0xFFFFFFFFU : (1U << (there < 0 ? 0 : there)) - 1U);
            block->row[i] = _mm512_maskz_loadu_epi16(mask, row);
        } else {
            __m512 even = load_lanes(row, there);
            __m512 odd = load_lanes(row + 16, there - 16);
            part_pairs(even, odd);
            store_pairs<terms>(even, odd, block, plane, i);
        }
    }
}

/// The same for float32, in three terms of which the first two are on the row's grids.
FLASHOMP_INLINE void pack_along(const float* source, std::ptrdiff_t stride, int count, int depth, const RowGrids& grids,
                                PairBlock* block, std::ptrdiff_t plane)
{
    for (int i = 0; i < PairBlock::rows; ++i) {
        const int there = i < count ? depth : 0;
        __m512 even = load_lanes(source + i * stride, there);
        __m512 odd = load_lanes(source + i * stride + 16, there - 16);
        part_pairs(even, odd);
        const __m512 shift = _mm512_set1_ps(grids.shift[i]);
        block->row[i] = take_slice(even, odd, shift);
        block[plane].row[i] = take_slice(even, odd, _mm512_mul_ps(shift, _mm512_set1_ps(0x1p-9F)));
        block[2 * plane].row[i] = rounded_pairs(even, odd);
    }
}

/// A block whose row i has elements [0, depth) of source rows 2i and 2i + 1, as pairs.
template <int terms, class T>
FLASHOMP_INLINE void pack_across(const T* source, std::ptrdiff_t stride, int count, int depth, PairBlock* block,
                                 std::ptrdiff_t plane)
{
    for (int i = 0; i < PairBlock::rows; ++i) {
        const T* row = source + 2 * i * stride;
        const __m512 even = load_lanes(row, 2 * i < count ? depth : 0);
        const __m512 odd = load_lanes(row + stride, 2 * i + 1 < count ? depth : 0);
        if constexpr (terms == 1 && sizeof(T) == 2) {
            block->row[i] = _mm512_or_si512(_mm512_srli_epi32(_mm512_castps_si512(even), 16), _mm512_castps_si512(odd));
        } else {
            store_pairs<terms>(even, odd, block, plane, i);
        }
    }
}

} // namespace flashomp::offload
