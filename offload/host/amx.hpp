// Products on AMX tiles.
#pragma once

#include "host/terms.hpp"

#include <cstdint>
#include <immintrin.h>

namespace flashomp::offload {

/// The tile registers of this thread, all of 16 rows of 64 bytes, for as long as it lives.
class AmxSession {
public:
    AmxSession()
    {
        struct alignas(64) {
            std::uint8_t palette = 1, start_row = 0;
            std::uint8_t reserved[14] = {};
            std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
            std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
        } configuration;
        static_assert(sizeof(configuration) == 64);
        asm volatile("" ::"r"(&configuration) : "memory"); // GCC 12's intrinsic owns up to reading 8 bytes of it
        _tile_loadconfig(&configuration);
    }
    ~AmxSession() { _tile_release(); }
    AmxSession(const AmxSession&) = delete;
    AmxSession& operator=(const AmxSession&) = delete;
};

/// C (+)= A·B for 32 x 32 elements of C, or fewer: tile registers 0 to 3 hold C, 4 and 5 two blocks of A, 6 and 7 two
/// of B. The tile loads tell the compiler nothing of the memory they read.
template <int terms, bool adds, bool two_m, bool two_n>
class AmxBlock {
    float *c0_, *c1_;
    std::ptrdiff_t low_; ///< from c to where the small products' sum goes; 0: to the same sum
    const PairBlock *a_, *b_;
    std::ptrdiff_t plane_a_, plane_b_;
    int k_;

    template <int t>
    FLASHOMP_INLINE void load_a(int k) const
    {
        _tile_loadd(4, a_ + t * plane_a_ + k, 64);
        if constexpr (two_m) {
            _tile_loadd(5, a_ + t * plane_a_ + k_ + k, 64);
        }
    }
    template <int t>
    FLASHOMP_INLINE void load_b(int k) const
    {
        _tile_loadd(6, b_ + t * plane_b_ + k, 64);
        if constexpr (two_n) {
            _tile_loadd(7, b_ + t * plane_b_ + k_ + k, 64);
        }
    }
    static FLASHOMP_INLINE void zero()
    {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    static FLASHOMP_INLINE void store(float* c0, float* c1)
    {
        _tile_stored(0, c0, 64);
        if constexpr (two_n) {
            _tile_stored(1, c1, 64);
        }
        if constexpr (two_m) {
            _tile_stored(2, c0 + 256, 64);
        }
        if constexpr (two_m && two_n) {
            _tile_stored(3, c1 + 256, 64);
        }
    }
    FLASHOMP_INLINE void multiply() const
    {
        _tile_dpbf16ps(0, 4, 6);
        if constexpr (two_n) {
            _tile_dpbf16ps(1, 4, 7);
        }
        if constexpr (two_m) {
            _tile_dpbf16ps(2, 5, 6);
        }
        if constexpr (two_m && two_n) {
            _tile_dpbf16ps(3, 5, 7);
        }
    }

public:
    FLASHOMP_INLINE AmxBlock(float* c, std::ptrdiff_t low, std::ptrdiff_t c_strip, const PairBlock* a,
                             std::ptrdiff_t plane_a, const PairBlock* b, std::ptrdiff_t plane_b, int k)
        : c0_(c), c1_(c + c_strip), low_(low), a_(a), b_(b), plane_a_(plane_a), plane_b_(plane_b), k_(k)
    {
    }

    FLASHOMP_INLINE void run() const
    {
        if constexpr (adds) {
            _tile_loadd(0, c0_, 64);
            if constexpr (two_n) {
                _tile_loadd(1, c1_, 64);
            }
            if constexpr (two_m) {
                _tile_loadd(2, c0_ + 256, 64);
            }
            if constexpr (two_m && two_n) {
                _tile_loadd(3, c1_ + 256, 64);
            }
        } else {
            zero();
        }
        // Small products first: their sum, about 2^-8 of the other, is where most additions round.
        for (int k = 0; terms > 1 && k < k_; ++k) {
            if constexpr (terms == 3) {
                load_a<2>(k);
                load_b<0>(k);
                multiply();
                load_a<1>(k);
                multiply();
                load_b<1>(k);
                multiply();
                load_a<0>(k);
                multiply();
                load_b<2>(k);
                multiply();
            } else {
                load_a<1>(k);
                if constexpr (!adds) { // scores, of which LSE shows every bit
                    load_b<1>(k);
                    multiply();
                }
                load_b<0>(k);
                multiply();
                load_a<0>(k);
                load_b<1>(k);
                multiply();
            }
        }
        if constexpr (terms == 3 && !adds) {
            if (low_ != 0) {
                store(c0_ + low_, c1_ + low_);
                zero();
            }
        }
        for (int k = 0; k < k_; ++k) {
            load_a<0>(k);
            load_b<0>(k);
            multiply();
        }
        store(c0_, c1_);
    }
};

/// C[n][m] (+)= A[m]·B[n], for tiles m and n, blocks of `k` tiles along the inner dimension; c_strip floats from n to
/// n + 1, plane_a and plane_b blocks from term to term. Where there is `low`, the products that are not of first terms
/// alone go there instead of to C.
template <int terms, bool adds>
// NOLINTNEXTLINE(readability-non-const-parameter): what `low` points to is written, from c on
FLASHOMP_INLINE void amx_multiply(float* c, float* low, std::ptrdiff_t c_strip, const PairBlock* a,
                                  std::ptrdiff_t plane_a, const PairBlock* b, std::ptrdiff_t plane_b, int m, int n,
                                  int k)
{
    const std::ptrdiff_t to_low = low != nullptr ? low - c : 0; // in the same crew's memory
    asm volatile("" ::: "memory");                              // what the tiles are loaded from has been written
    for (int j = 0; j < n; j += 2) {
        float* strip = c + j * c_strip;
        const PairBlock* right = b + std::ptrdiff_t{j} * k;
        for (int i = 0; i < m; i += 2) {
            const PairBlock* left = a + std::ptrdiff_t{i} * k;
            float* block = strip + i * 256;
            if (j + 1 < n && i + 1 < m) {
                AmxBlock<terms, adds, true, true>(block, to_low, c_strip, left, plane_a, right, plane_b, k).run();
            } else if (j + 1 < n) {
                AmxBlock<terms, adds, false, true>(block, to_low, c_strip, left, plane_a, right, plane_b, k).run();
            } else if (i + 1 < m) {
                AmxBlock<terms, adds, true, false>(block, to_low, c_strip, left, plane_a, right, plane_b, k).run();
            } else {
                AmxBlock<terms, adds, false, false>(block, to_low, c_strip, left, plane_a, right, plane_b, k).run();
            }
        }
    }
}

/// Products of tiles and nothing else: as many FLOPs as it returns.
inline double amx_products(std::int64_t rounds)
{
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_zero(4);
    _tile_zero(5);
    _tile_zero(6);
    _tile_zero(7);
    for (std::int64_t i = 0; i < rounds; i += 16) { // a product takes 16 cycles
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    const std::int64_t rounds_run = (rounds + 15) / 16;
    return 4.0 * 2 * 16 * 16 * 32 * static_cast<double>(rounds_run);
}

} // namespace flashomp::offload
