// What the products of the machine for few queries are made of, for an element type of the streamed rows: how a piece
// of a row is loaded, and multiplied. A type of its own for caches needs these loads and nothing else.
#pragma once

#include "host/lanes.hpp"

namespace flashomp::offload {

/// Products of two rows along their depth, and how resident rows are kept for that.
template <class Isa, class T>
struct DepthProducts {
    using Vector = typename Lanes<Isa>::Vector;
    using Resident = float; ///< element of a resident row
    using Piece = Vector;
    enum : int { step = Isa::lanes };     ///< elements of a piece
    static constexpr float factor = 1.0F; ///< of a product of two rows: elements may be loaded divided by it

    static FLASHOMP_INLINE Piece load(const T* row) { return Lanes<Isa>::load(row); }
    static FLASHOMP_INLINE Piece resident(const Resident* row) { return Lanes<Isa>::load(row); }

    static FLASHOMP_INLINE Piece load(const T* row, int n) { return Lanes<Isa>::load(row, n); } ///< then zeros

    static FLASHOMP_INLINE Vector add(Vector sum, Piece x, Piece y) { return sum + x * y; }

    /// Keeps a piece in a register: as the operand of multiply-adds it would be read once for each streamed row.
    static FLASHOMP_INLINE void keep([[maybe_unused]] Piece& x)
    {
#if defined(__x86_64__)
        asm("" : "+x"(x));
#endif
    }
};

/// What sums of probabilities times values are made of: pieces of a vector's columns, of one value or of several that
/// follow one another, and their probabilities.
template <class Isa, class T>
struct ValueSums {
    using Vector = typename Lanes<Isa>::Vector;
    using Piece = Vector;
    using Weight = float; ///< as accumulate() reads it from a row of scores
    enum : int {
        values = 1,
        vectors = 1, ///< pieces of so many are loaded at once
    };

    /// A row of scores as it is read.
    static FLASHOMP_INLINE void prepare(float*, int) {}

    static FLASHOMP_INLINE Piece load(const T* const (&row)[values], int x) { return Lanes<Isa>::load(row[0] + x); }
    /// The first n columns, then zeros.
    static FLASHOMP_INLINE Piece load(const T* const (&row)[values], int x, int n)
    {
        return Lanes<Isa>::load(row[0] + x, n);
    }
    static FLASHOMP_INLINE Vector add(Vector sum, Weight p, Piece v) { return sum + p * v; }
};

#if defined(__AVX2__) && !defined(__AVX512F__)
/// 16 elements of float8_e4m3, divided by 2^8, as two vectors. Exponent and fraction stand in a half where those of
/// value / 2^8 have their place (Lanes::load()); the NaN, all ones, becomes a half's. A conversion of 16 takes half as
/// many instructions as two of 8, and its division is taken back where there is one product for each of them.
struct Float8Halves {
    static constexpr float factor = 0x1p8F;

    __m256 first, last;

    explicit FLASHOMP_INLINE Float8Halves(const Float8* source)
    {
        const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(source));
        const __m256i bits = _mm256_slli_epi16(_mm256_cvtepi8_epi16(bytes), 7);
        const __m256i half = _mm256_and_si256(bits, _mm256_set1_epi16(static_cast<short>(0xBFFF)));
        const __m256i size = _mm256_and_si256(bits, _mm256_set1_epi16(0x3F80));
        const __m256i value = _mm256_or_si256(half, _mm256_cmpeq_epi16(size, _mm256_set1_epi16(0x3F80)));
        first = _mm256_cvtph_ps(_mm256_castsi256_si128(value));
        last = _mm256_cvtph_ps(_mm256_extracti128_si256(value, 1));
    }
};

template <class Isa>
struct DepthProducts<Isa, Float8> {
    using Vector = typename Lanes<Isa>::Vector;
    using Resident = float;
    struct Piece {
        Vector first, last;
    };
    enum : int { step = 2 * Isa::lanes };
    static constexpr float factor = Float8Halves::factor;

    static FLASHOMP_INLINE Piece load(const Float8* row)
    {
        const Float8Halves halves(row);
        return {reinterpret_cast<Vector>(halves.first), reinterpret_cast<Vector>(halves.last)};
    }
    static FLASHOMP_INLINE Piece load(const Float8* row, int n)
    {
        Float8 rest[step] = {};
        for (int i = 0; i < n; ++i) {
            rest[i] = row[i];
        }
        return load(rest);
    }
    static FLASHOMP_INLINE Piece resident(const Resident* row)
    {
        return {Lanes<Isa>::load(row), Lanes<Isa>::load(row + Isa::lanes)};
    }
    static FLASHOMP_INLINE void keep(Piece&) {} // two registers each would be too many
    static FLASHOMP_INLINE Vector add(Vector sum, const Piece& x, const Piece& y)
    {
        return sum + x.first * y.first + x.last * y.last;
    }
};

template <class Isa>
struct ValueSums<Isa, Float8> : ValueSums<Isa, float> {
    using Vector = typename Lanes<Isa>::Vector;
    enum : int { values = 1, vectors = 2 };

    static FLASHOMP_INLINE void prepare(float* row, int count)
    {
        for (int c = 0; c < count; ++c) {
            row[c] *= Float8Halves::factor;
        }
    }
    static FLASHOMP_INLINE void load(const Float8* const (&row)[values], int x, Vector& first, Vector& last)
    {
        const Float8Halves halves(row[0] + x);
        first = reinterpret_cast<Vector>(halves.first);
        last = reinterpret_cast<Vector>(halves.last);
    }
    static FLASHOMP_INLINE Vector load(const Float8* const (&row)[values], int x)
    {
        return Lanes<Isa>::load(row[0] + x) * (1.0F / Float8Halves::factor);
    }
    static FLASHOMP_INLINE Vector load(const Float8* const (&row)[values], int x, int n)
    {
        return Lanes<Isa>::load(row[0] + x, n) * (1.0F / Float8Halves::factor);
    }
};
#endif

#if defined(__AVX512BF16__)
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
        for (unsigned bits = 1; bits < 127; ++bits) {
            unsigned exponent = bits >> 3, fraction = bits & 7U;
            if (exponent == 0) {
                for (exponent = 1; fraction < 8; --exponent) {
                    fraction *= 2;
                }
            }
            bfloat16[bits] = static_cast<std::uint16_t>((exponent + 127U - 7U) << 7 | (fraction & 7U) << 4);
        }
        bfloat16[127] = 0x7FC0;
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
#endif

} // namespace flashomp::offload
