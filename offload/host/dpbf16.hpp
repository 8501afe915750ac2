// Products of pairs on AVX-512 vectors (vdpbf16ps).
#pragma once

#include "host/terms.hpp"

#include <immintrin.h>

namespace flashomp::offload {

/// C (+)= A·B for 8 rows and V strips.
template <bool adds, int V>
FLASHOMP_INLINE void dpbf16_block(float* c, std::ptrdiff_t c_strip, const int* a, const PairBlock* b, int k)
{
    constexpr int rows = 8, lanes = 16;
    __m512 sum[rows][V];
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 2
        for (int v = 0; v < V; ++v) {
            sum[r][v] = adds ? _mm512_load_ps(c + v * c_strip + r * lanes) : _mm512_setzero_ps();
        }
    }
    for (int block = 0; block < k; ++block) {
        for (int pair = 0; pair < PairBlock::rows; ++pair) {
            __m512bh right[V];
#pragma GCC unroll 2
            for (int v = 0; v < V; ++v) {
                right[v] = reinterpret_cast<__m512bh>(b[v * k + block].row[pair]);
            }
#pragma GCC unroll 8
            for (int r = 0; r < rows; ++r) {
                const auto left = reinterpret_cast<__m512bh>(_mm512_set1_epi32(a[(block * 16 + r) * 16 + pair]));
#pragma GCC unroll 2
                for (int v = 0; v < V; ++v) {
                    sum[r][v] = _mm512_dpbf16_ps(sum[r][v], left, right[v]);
                }
            }
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 2
        for (int v = 0; v < V; ++v) {
            _mm512_store_ps(c + v * c_strip + r * lanes, sum[r][v]);
        }
    }
}

/// As amx_multiply(), for one term.
template <bool adds>
FLASHOMP_INLINE void dpbf16_multiply(float* c, std::ptrdiff_t c_strip, const PairBlock* a, const PairBlock* b, int m,
                                     int n, int k)
{
    for (int j = 0; j < n; j += 2) {
        for (int i = 0; i < 2 * m; ++i) { // halves of 16 rows
            float* block = c + j * c_strip + i * 128;
            const int* left = reinterpret_cast<const int*>(a + std::ptrdiff_t{i / 2} * k) + i % 2 * 128;
            const PairBlock* right = b + std::ptrdiff_t{j} * k;
            if (j + 1 < n) {
                dpbf16_block<adds, 2>(block, c_strip, left, right, k);
            } else {
                dpbf16_block<adds, 1>(block, c_strip, left, right, k);
            }
        }
    }
}

/// Products of pairs and nothing else: as many FLOPs as it returns.
inline double dpbf16_products(std::int64_t rounds)
{
    constexpr int chains = 12;
    __m512 sum[chains];
    for (__m512& x : sum) {
        x = _mm512_setzero_ps();
    }
    auto factor = reinterpret_cast<__m512bh>(_mm512_set1_epi32(0x3F803F80));
    for (std::int64_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 12
        for (__m512& x : sum) {
            x = _mm512_dpbf16_ps(x, factor, factor);
        }
    }
#pragma GCC unroll 12
    for (__m512& x : sum) {
        asm volatile("" ::"v"(x)); // nobody reads it
    }
    return 2.0 * 32 * chains * static_cast<double>(rounds);
}

} // namespace flashomp::offload
