// The products of the machine for few queries on pairs of bfloat16 (AVX-512-BF16): of a cache of that type, and of one
// of 8 bits beside such queries. CPUs with AMX have these instructions, too, but take twice as long for one as for a
// multiply-add of floats, so that nothing is won (docs/log/host-decoding.md); there they are left out.
#pragma once

#include "host/row_products.hpp"

#if defined(__AVX512BF16__) && !defined(__AMX_TILE__)
#define FLASHOMP_FEW_ON_PAIRS 1
#else
#define FLASHOMP_FEW_ON_PAIRS 0
#endif

#if FLASHOMP_FEW_ON_PAIRS
namespace flashomp::offload {

/// Pairs of bfloat16, as they are. Queries of bfloat16 lose nothing. The sum is rounded after each product.
template <class Isa>
struct DepthProducts<Isa, BFloat16> {
    using Vector = typename Lanes<Isa>::Vector;
    using Resident = BFloat16;
    using Piece = __m512bh;
    enum : int { step = 2 * Isa::lanes };
    static constexpr float factor = 1.0F;

    static FLASHOMP_INLINE Piece load(const BFloat16* row)
    {
        return reinterpret_cast<__m512bh>(_mm512_loadu_si512(row));
    }
    static FLASHOMP_INLINE Piece resident(const BFloat16* row) { return load(row); }
    static FLASHOMP_INLINE Piece load(const BFloat16* row, int n)
    {
        return reinterpret_cast<__m512bh>(_mm512_maskz_loadu_epi16((1U << n) - 1U, row));
    }
    static FLASHOMP_INLINE Vector add(Vector sum, Piece x, Piece y)
    {
        return reinterpret_cast<Vector>(_mm512_dpbf16_ps(reinterpret_cast<__m512>(sum), x, y));
    }
};

/// Two values' columns in turn, with probabilities of bfloat16, as matrix machines have them. Those of a row are put
/// where its first scores were.
template <class Isa>
struct ValueSums<Isa, BFloat16> {
    using Vector = typename Lanes<Isa>::Vector;
    using Piece = __m512bh;
    using Weight = std::int32_t; ///< a pair
    enum : int { values = 2, vectors = 1 };

    static FLASHOMP_INLINE void prepare(float* row, int count)
    {
        for (int c = 0; c < count; c += Isa::lanes) {
            const __m256bh half = _mm512_cvtneps_pbh(_mm512_loadu_ps(row + c));
            __builtin_memcpy(row + c / 2, &half, sizeof half);
        }
    }

    static FLASHOMP_INLINE Piece load(const BFloat16* const (&row)[values], int x)
    {
        return pairs(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(row[0] + x)),
                     _mm256_loadu_si256(reinterpret_cast<const __m256i*>(row[1] + x)));
    }
    static FLASHOMP_INLINE Piece load(const BFloat16* const (&row)[values], int x, int n)
    {
        const auto mask = static_cast<__mmask16>((1U << n) - 1U);
        return pairs(_mm256_maskz_loadu_epi16(mask, row[0] + x), _mm256_maskz_loadu_epi16(mask, row[1] + x));
    }
    static FLASHOMP_INLINE Vector add(Vector sum, Weight p, Piece v)
    {
        return reinterpret_cast<Vector>(
            _mm512_dpbf16_ps(reinterpret_cast<__m512>(sum), reinterpret_cast<__m512bh>(_mm512_set1_epi32(p)), v));
    }

private:
    static FLASHOMP_INLINE Piece pairs(__m256i even, __m256i odd)
    {
        // Words 0, 32, 1, 33, and so on: of the first and of the second.
        const __m512i order = _mm512_or_si512(
            _mm512_cvtepu16_epi32(_mm256_set_epi16(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0)),
            _mm512_slli_epi32(
                _mm512_cvtepu16_epi32(_mm256_set_epi16(47, 46, 45, 44, 43, 42, 41, 40, 39, 38, 37, 36, 35, 34, 33, 32)),
                16));
        return reinterpret_cast<__m512bh>(
            _mm512_permutex2var_epi16(_mm512_castsi256_si512(even), order, _mm512_castsi256_si512(odd)));
    }
};

/// An element of 8 bits that is to be multiplied as a bfloat16, which all of these types' numbers are.
template <class T>
struct OnPairs {
    T element;
};

FLASHOMP_INLINE __m512bh bfloat16_of(__m256i bytes, const Int8*)
{
    const __m512 first = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm256_castsi256_si128(bytes)));
    const __m512 last = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm256_extracti128_si256(bytes, 1)));
    return _mm512_cvtne2ps_pbh(last, first);
}

/// Looked up by all bits but the sign: products of pairs take denormals of bfloat16 for 0, so that those of float8_e4m3
/// need their exponent, and no shift gives it to them.
struct Float8Table {
    alignas(64) std::uint16_t bfloat16[128] = {};

    constexpr Float8Table()
    {
        for (unsigned bits = 0; bits < 128; ++bits) {
            bfloat16[bits] = bfloat16_of_float8(bits);
        }
    }
};
inline constexpr Float8Table float8_table;

FLASHOMP_INLINE __m512bh bfloat16_of(__m256i bytes, const Float8*)
{
    const std::uint16_t* const table = float8_table.bfloat16;
    const __m512i x = _mm512_cvtepu8_epi16(bytes);
    const __m512i low = _mm512_permutex2var_epi16(_mm512_load_si512(table), x, _mm512_load_si512(table + 32));
    const __m512i high = _mm512_permutex2var_epi16(_mm512_load_si512(table + 64), x, _mm512_load_si512(table + 96));
    const __m512i magnitude = _mm512_mask_mov_epi16(low, _mm512_test_epi16_mask(x, _mm512_set1_epi16(64)), high);
    const __m512i sign = _mm512_and_si512(_mm512_slli_epi16(x, 8), _mm512_set1_epi16(-32768));
    return reinterpret_cast<__m512bh>(_mm512_or_si512(magnitude, sign));
}

template <class Isa, class T>
struct DepthProducts<Isa, OnPairs<T>> : DepthProducts<Isa, BFloat16> {
    using Piece = __m512bh;

    static FLASHOMP_INLINE Piece load(const OnPairs<T>* row)
    {
        return bfloat16_of(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(row)), static_cast<const T*>(nullptr));
    }
    static FLASHOMP_INLINE Piece load(const OnPairs<T>* row, int n)
    {
        return bfloat16_of(_mm256_maskz_loadu_epi8((1U << n) - 1U, row), static_cast<const T*>(nullptr));
    }
};

template <class Isa, class T>
struct ValueSums<Isa, OnPairs<T>> : ValueSums<Isa, BFloat16> {
    using Piece = __m512bh;
    enum : int { values = 2, vectors = 1 };

    static FLASHOMP_INLINE Piece load(const OnPairs<T>* const (&row)[values], int x)
    {
        return pairs(_mm_loadu_si128(reinterpret_cast<const __m128i*>(row[0] + x)),
                     _mm_loadu_si128(reinterpret_cast<const __m128i*>(row[1] + x)));
    }
    static FLASHOMP_INLINE Piece load(const OnPairs<T>* const (&row)[values], int x, int n)
    {
        const auto mask = static_cast<__mmask16>((1U << n) - 1U);
        return pairs(_mm_maskz_loadu_epi8(mask, row[0] + x), _mm_maskz_loadu_epi8(mask, row[1] + x));
    }

private:
    static FLASHOMP_INLINE Piece pairs(__m128i even, __m128i odd)
    {
        return bfloat16_of(_mm256_set_m128i(_mm_unpackhi_epi8(even, odd), _mm_unpacklo_epi8(even, odd)),
                           static_cast<const T*>(nullptr));
    }
};

} // namespace flashomp::offload
#endif
