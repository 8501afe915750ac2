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

/// The bfloat16 of a float8_e4m3 without its sign. Its smallest numbers, denormal there, have an exponent here.
constexpr std::uint16_t bfloat16_of_float8(unsigned bits)
{
    unsigned exponent = bits >> 3, fraction = bits & 7U;
    if (bits == 0 || bits == 127) {
        return bits == 0 ? 0 : 0x7FC0;
    }
    if (exponent == 0) {
        for (exponent = 1; fraction < 8; --exponent) {
            fraction *= 2;
        }
    }
    return static_cast<std::uint16_t>((exponent + 127U - 7U) << 7 | (fraction & 7U) << 4);
}

#if defined(__AVX512VBMI__)
/// What Float8Quarters looks up.
struct Float8Bytes {
    alignas(64) std::uint8_t low[128] = {}, high[128] = {}; ///< of the bfloat16, by all bits but the sign
    alignas(64) std::uint8_t order[64] = {};                ///< of elements, so that each quarter is a vector

    constexpr Float8Bytes()
    {
        for (unsigned bits = 0; bits < 128; ++bits) {
            low[bits] = static_cast<std::uint8_t>(bfloat16_of_float8(bits));
            high[bits] = static_cast<std::uint8_t>(bfloat16_of_float8(bits) >> 8);
        }
        // The bytes of 8 bfloat16 come from half of a quarter of the vector, and every second one becomes a float of
        // the same vector.
        for (unsigned to = 0; to < 64; ++to) {
            const unsigned half = to % 16 / 8, word = to / 16 * 8 + to % 8;
            order[to] = static_cast<std::uint8_t>(half * 32 + word % 2 * 16 + word / 2);
        }
    }
};
inline constexpr Float8Bytes float8_bytes;

/// 64 elements of float8_e4m3 as four vectors: two lookups for all of them, where conversions take 16 at a time.
template <class Isa>
struct Float8Quarters {
    using Vector = typename Lanes<Isa>::Vector;
    Vector part[4];

    static FLASHOMP_INLINE Float8Quarters of(__m512i elements)
    {
        const auto& table = float8_bytes;
        const __m512i x = _mm512_permutexvar_epi8(_mm512_load_si512(table.order), elements);
        const __m512i low =
            _mm512_permutex2var_epi8(_mm512_load_si512(table.low), x, _mm512_load_si512(table.low + 64));
        const __m512i magnitude =
            _mm512_permutex2var_epi8(_mm512_load_si512(table.high), x, _mm512_load_si512(table.high + 64));
        constexpr int first_or_both_others = 0xF8;
        const __m512i high = _mm512_ternarylogic_epi32(magnitude, x, _mm512_set1_epi8(-128), first_or_both_others);
        const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xFFFF0000U));
        const __m512i first = _mm512_unpacklo_epi8(low, high), last = _mm512_unpackhi_epi8(low, high);
        return {{reinterpret_cast<Vector>(_mm512_slli_epi32(first, 16)),
                 reinterpret_cast<Vector>(_mm512_and_si512(first, upper)),
                 reinterpret_cast<Vector>(_mm512_slli_epi32(last, 16)),
                 reinterpret_cast<Vector>(_mm512_and_si512(last, upper))}};
    }
};

template <class Isa>
struct DepthProducts<Isa, Float8> {
    using Vector = typename Lanes<Isa>::Vector;
    using Resident = float;
    using Piece = Float8Quarters<Isa>;
    enum : int { step = 4 * Isa::lanes };
    static constexpr float factor = 1.0F;

    static FLASHOMP_INLINE Piece load(const Float8* row) { return Piece::of(_mm512_loadu_si512(row)); }
    static FLASHOMP_INLINE Piece load(const Float8* row, int n)
    {
        return Piece::of(_mm512_maskz_loadu_epi8((std::uint64_t{1} << n) - 1U, row));
    }
    static FLASHOMP_INLINE Piece resident(const Resident* row)
    {
        return {{Lanes<Isa>::load(row), Lanes<Isa>::load(row + Isa::lanes), Lanes<Isa>::load(row + 2 * Isa::lanes),
                 Lanes<Isa>::load(row + 3 * Isa::lanes)}};
    }
    static FLASHOMP_INLINE Vector add(Vector sum, const Piece& x, const Piece& y)
    {
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
            sum += x.part[i] * y.part[i];
        }
        return sum;
    }
};

template <class Isa>
struct ValueSums<Isa, Float8> : ValueSums<Isa, float> {
    using Vector = typename Lanes<Isa>::Vector;
    enum : int { values = 1, vectors = 4 };

    static FLASHOMP_INLINE void load(const Float8* const (&row)[values], int x, Vector* pieces)
    {
        const auto quarters = Float8Quarters<Isa>::of(_mm512_loadu_si512(row[0] + x));
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
            pieces[i] = quarters.part[i];
        }
    }
    static FLASHOMP_INLINE Vector load(const Float8* const (&row)[values], int x)
    {
        return Lanes<Isa>::load(row[0] + x);
    }
    static FLASHOMP_INLINE Vector load(const Float8* const (&row)[values], int x, int n)
    {
        return Lanes<Isa>::load(row[0] + x, n);
    }
};
#endif

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
    static FLASHOMP_INLINE void load(const Float8* const (&row)[values], int x, Vector* pieces)
    {
        const Float8Halves halves(row[0] + x);
        pieces[0] = reinterpret_cast<Vector>(halves.first);
        pieces[1] = reinterpret_cast<Vector>(halves.last);
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

} // namespace flashomp::offload
