// Vectors of floats, one lane a row, for the host machines: GNU vector extensions, and instructions that they do not
// reach where there are some.
#pragma once

#include "algorithm/element.hpp"
#include "algorithm/math.hpp"

#include "flashomp/dropout.hpp"

#include <utility>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

/// What works on a whole tile: one copy for all passes that use it. One in each place is most of what g++ compiles for
/// minutes, and costs registers there.
#define FLASHOMP_OUT_OF_LINE __attribute__((noinline))

namespace flashomp::offload {

template <class Isa>
struct Lanes {
    using Vector __attribute__((vector_size(sizeof(float) * Isa::lanes))) = float;
    using Bits __attribute__((vector_size(sizeof(float) * Isa::lanes))) = std::uint32_t;

    /// As many elements as there are lanes, from anywhere.
    static FLASHOMP_INLINE Vector load(const float* source)
    {
        Vector x;
        __builtin_memcpy(&x, source, sizeof x);
        return x;
    }
    static FLASHOMP_INLINE Vector load(const BFloat16* source)
    {
#if defined(__AVX512F__)
        const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(source));
        return reinterpret_cast<Vector>(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
#elif defined(__AVX2__)
        const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(source));
        return reinterpret_cast<Vector>(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
#else
        return load_converted(source);
#endif
    }
    static FLASHOMP_INLINE Vector load(const Float16* source)
    {
#if defined(__AVX512F__)
        return reinterpret_cast<Vector>(_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(source))));
#elif defined(__AVX2__)
        return reinterpret_cast<Vector>(_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(source))));
#else
        return load_converted(source);
#endif
    }
    static FLASHOMP_INLINE Vector load(const Int8* source)
    {
#if defined(__AVX512F__)
        const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(source));
        return reinterpret_cast<Vector>(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes)));
#elif defined(__AVX2__)
        const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(source));
        return reinterpret_cast<Vector>(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)));
#else
        return load_converted(source);
#endif
    }
    /// Exponent and fraction of float8_e4m3 stand in a half where those of value / 2^8 have their place, of denormals
    /// too: to_float(Float16)'s instruction reads both kinds, whatever the thread has set for denormals of floats. The
    /// NaN, all ones, would be 480, and no number of the type is.
    static FLASHOMP_INLINE Vector load(const Float8* source)
    {
#if defined(__AVX512F__)
        const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(source));
        const __m256i half = _mm256_and_si256(_mm256_slli_epi16(_mm256_cvtepi8_epi16(bytes), 7),
                                              _mm256_set1_epi16(static_cast<short>(0xBFFF)));
        const __m128i ones = _mm_set1_epi8(-1);
        const __mmask16 number = _mm_cmpneq_epi8_mask(_mm_or_si128(bytes, _mm_set1_epi8(-128)), ones);
        return reinterpret_cast<Vector>(_mm512_mask_mul_ps(_mm512_castsi512_ps(_mm512_set1_epi32(0x7FC00000)), number,
                                                           _mm512_cvtph_ps(half), _mm512_set1_ps(0x1p8F)));
#elif defined(__AVX2__)
        const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(source));
        const __m128i half =
            _mm_and_si128(_mm_slli_epi16(_mm_cvtepi8_epi16(bytes), 7), _mm_set1_epi16(static_cast<short>(0xBFFF)));
        const __m256 value = _mm256_mul_ps(_mm256_cvtph_ps(half), _mm256_set1_ps(0x1p8F));
        const __m256 size = _mm256_and_ps(value, _mm256_castsi256_ps(_mm256_set1_epi32(0x7FFFFFFF)));
        return reinterpret_cast<Vector>(_mm256_or_ps(value, _mm256_cmp_ps(size, _mm256_set1_ps(480.0F), _CMP_EQ_OQ)));
#else
        return load_converted(source);
#endif
    }

    /// The first n elements, fewer than there are lanes, and then zeros.
    template <class T>
    static FLASHOMP_INLINE Vector load(const T* source, int n)
    {
        T rest[Isa::lanes] = {};
        for (int i = 0; i < n; ++i) {
            rest[i] = source[i];
        }
        return load(rest);
    }

    /// The sum of all lanes, halves first.
    static FLASHOMP_INLINE float sum(Vector x)
    {
#if defined(__AVX512F__)
        return _mm512_reduce_add_ps(reinterpret_cast<__m512>(x));
#else
        float part[Isa::lanes];
        __builtin_memcpy(part, &x, sizeof x);
        for (int half = Isa::lanes / 2; half > 0; half /= 2) {
            for (int i = 0; i < half; ++i) {
                part[i] += part[i + half];
            }
        }
        return part[0];
#endif
    }

    /// The sums of the lanes of as many vectors as there are lanes, of vector i in lane i: halves first, as in sum().
    static FLASHOMP_INLINE Vector sums(const Vector* x)
    {
        Vector part[Isa::lanes];
#pragma GCC unroll 16
        for (int i = 0; i < Isa::lanes; ++i) {
            part[i] = x[i];
        }
        halve<Isa::lanes / 2>(part);
        return part[0];
    }

    /// The largest lane, of which none is a NaN.
    static FLASHOMP_INLINE float max(Vector x)
    {
#if defined(__AVX512F__)
        return _mm512_reduce_max_ps(reinterpret_cast<__m512>(x));
#else
        float part[Isa::lanes];
        __builtin_memcpy(part, &x, sizeof x);
        for (int half = Isa::lanes / 2; half > 0; half /= 2) {
            for (int i = 0; i < half; ++i) {
                part[i] = part[i] > part[i + half] ? part[i] : part[i + half];
            }
        }
        return part[0];
#endif
    }

    /// The larger of each lane; y where x is a NaN.
    static FLASHOMP_INLINE Vector max(Vector x, Vector y)
    {
#if defined(__AVX512F__)
        return reinterpret_cast<Vector>(_mm512_max_ps(reinterpret_cast<__m512>(x), reinterpret_cast<__m512>(y)));
#elif defined(__AVX2__)
        return reinterpret_cast<Vector>(_mm256_max_ps(reinterpret_cast<__m256>(x), reinterpret_cast<__m256>(y)));
#else
        return x > y ? x : y;
#endif
    }

    /// exp2_fast() of each lane. With AVX-512's instructions for it, 2^x is 2^floor(x) · 2^(x - floor(x)); the
    /// polynomial is of degree 5, a minimax fit of the relative error, and the result's is below 2.5e-7, too.
    static FLASHOMP_INLINE Vector exp2(Vector x)
    {
#if defined(__AVX512DQ__)
        const auto z = reinterpret_cast<__m512>(x);
        // Below -125 the result is to be 0 and not denormal; -inf would make the rest inf - inf.
        const __mmask16 whole = _mm512_cmp_ps_mask(z, _mm512_set1_ps(-125.0F), _CMP_NLT_UQ); // a NaN stays one
        const __m512 f = _mm512_maskz_reduce_ps(whole, z, _MM_FROUND_TO_NEG_INF);            // x - floor(x), exact
        __m512 y = _mm512_set1_ps(0.00186713F);
        y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(0.009017031F));
        y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(0.055799913F));
        y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(0.24016444F));
        y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(0.6931513F));
        y = _mm512_fmadd_ps(y, f, _mm512_set1_ps(1.0F));
        return reinterpret_cast<Vector>(_mm512_maskz_scalef_ps(whole, y, z));
#else
        const Vector clamped = x < -125.0F ? Vector{} - 125.0F : x;
        constexpr float shift = 12582912.0F + 127.0F; // see exp2_fast()
        const Vector shifted = clamped + shift;
        const Vector f = clamped - (shifted - shift);
        const Vector result =
            exp2_polynomial<Lanes>(f) * reinterpret_cast<Vector>(reinterpret_cast<Bits>(shifted) << 23);
        return x < -125.0F ? Vector{} : result;
#endif
    }

    /// The four words of dropout_draws() of so many rows i.
    struct Draws {
        Bits word[4];
    };
    static FLASHOMP_INLINE Draws dropout_draws(PhiloxKey key, std::uint32_t batch, std::uint32_t head, Bits i,
                                               std::uint32_t quad)
    {
        Bits c0 = Bits{} + quad;
        Bits c1 = i;
        Bits c2 = Bits{} + head;
        Bits c3 = Bits{} + batch;
        std::uint32_t k0 = key.word[0];
        std::uint32_t k1 = key.word[1];
#pragma GCC unroll 10
        for (int round = 0; round < philox_rounds; ++round) {
            const Product product_0 = multiply(c0, philox_multiplier_0);
            const Product product_1 = multiply(c2, philox_multiplier_1);
            c0 = product_1.high ^ c1 ^ k0;
            c1 = product_1.low;
            c2 = product_0.high ^ c3 ^ k1;
            c3 = product_0.low;
            k0 += philox_weyl_0;
            k1 += philox_weyl_1;
        }
        return {{c0, c1, c2, c3}};
    }

private:
    using Wide __attribute__((vector_size(sizeof(float) * Isa::lanes))) = std::uint64_t;

    /// 64 bits of each product. Compilers make them of shuffled halves; here every second lane is multiplied at a time.
    struct Product {
        Bits low, high;
    };
    static FLASHOMP_INLINE Product multiply(Bits x, std::uint32_t y)
    {
        const Wide even = reinterpret_cast<Wide>(x);
        const Wide odd = even >> 32;
        const Wide factor = Wide{} + y;
#if defined(__AVX512F__)
        const auto by = [&factor](const Wide& half) FLASHOMP_LAMBDA {
            return reinterpret_cast<Wide>(
                _mm512_mul_epu32(reinterpret_cast<__m512i>(half), reinterpret_cast<__m512i>(factor)));
        };
        const Wide product_even = by(even);
#elif defined(__AVX2__)
        const auto by = [&factor](const Wide& half) FLASHOMP_LAMBDA {
            return reinterpret_cast<Wide>(
                _mm256_mul_epu32(reinterpret_cast<__m256i>(half), reinterpret_cast<__m256i>(factor)));
        };
        const Wide product_even = by(even);
#else
        const auto by = [&factor](const Wide& half) FLASHOMP_LAMBDA { return half * factor; };
        const Wide product_even = by(even & 0xFFFFFFFFU);
#endif
        const Wide product_odd = by(odd);
        constexpr std::uint64_t upper = 0xFFFFFFFF00000000U;
        return {reinterpret_cast<Bits>((product_even & ~upper) | (product_odd << 32)),
                reinterpret_cast<Bits>((product_even >> 32) | (product_odd & upper))};
    }

    /// Of vectors i and i + d one, in whose lane j is the sum of lanes j and j ^ d of the one that bit d of j says.
    template <int d, int... j>
    static FLASHOMP_INLINE Vector halves(Vector x, Vector y, std::integer_sequence<int, j...>)
    {
        return __builtin_shufflevector(x, y, ((j & d) == 0 ? j : Isa::lanes + j)...) +
               __builtin_shufflevector(x, y, ((j & d) == 0 ? j + d : Isa::lanes + j - d)...);
    }

    template <int d>
    static FLASHOMP_INLINE void halve(Vector* part)
    {
#pragma GCC unroll 8
        for (int i = 0; i < d; ++i) {
            part[i] = halves<d>(part[i], part[i + d], std::make_integer_sequence<int, Isa::lanes>());
        }
        if constexpr (d > 1) {
            halve<d / 2>(part);
        }
    }

    template <class T>
    static FLASHOMP_INLINE Vector load_converted(const T* source)
    {
        float values[Isa::lanes];
        for (int i = 0; i < Isa::lanes; ++i) {
            values[i] = to_float(source[i]);
        }
        return load(values);
    }
};

} // namespace flashomp::offload
