// What a kernel says of its results where they are stored: whether all are finite. offload/host/nonfinite.hpp says what
// for.
#pragma once

#include "algorithm/team_memory.hpp"

#include <cstdint>

#pragma omp declare target

namespace flashomp::offload {

/// Sets Params::nonfinite, if there is one, where the condition holds. Any number of lanes may do so at one time.
///
/// On a GPU it is a store with a predicate, not a branch: g++ made two copies of the barrier that follows, one behind
/// either side of the branch, lanes of one warp waited at both, and the kernel hung.
// NOLINTNEXTLINE(readability-non-const-parameter): written through, in an asm statement on a GPU
FLASHOMP_INLINE void set_nonfinite(unsigned* nonfinite, bool condition)
{
    const bool is_set = condition & (nonfinite != nullptr);
    if (is_nvptx()) {
        asm volatile("{ .reg .u64 a; .reg .b32 c; .reg .pred p; mov.b64 a, %0; mov.b32 c, %1; setp.ne.u32 p, c, 0;"
                     " @p st.u32 [a], 1; }" ::FLASHOMP_ASM_ADDRESS(reinterpret_cast<unsigned long long>(nonfinite)),
                     "r"(static_cast<std::uint32_t>(is_set)));
    } else if (is_set) {
#ifndef __CUDACC__
        __atomic_store_n(nonfinite, 1U, __ATOMIC_RELAXED);
#endif
    }
}

/// What a lane stores: one multiply-add a value, which stays 0 until a value is not finite, and is NaN from then on.
class FiniteCheck {
public:
    /// x is stored, times by, whose `of_factor` this is.
    FLASHOMP_INLINE void see(float x, float zero) { seen_ = __builtin_fmaf(x, zero, seen_); }
    static FLASHOMP_INLINE float of_factor(float by) { return by * 0.0F; }

    FLASHOMP_INLINE void report(unsigned* nonfinite) const { set_nonfinite(nonfinite, seen_ != 0.0F); }

private:
    float seen_ = 0.0F;
};

/// The same of words with two values of 16 bits. An exponent of ones is what infinities and NaNs have: one more in its
/// last place carries into the sign's.
class HalvesCheck {
public:
    /// Eight values, bfloat16 or float16.
    template <class Words>
    FLASHOMP_INLINE void see(bool is_bfloat16, const Words& words)
    {
        const std::uint32_t exponents = is_bfloat16 ? 0x7F807F80U : 0x7C007C00U;
        const std::uint32_t last_places = is_bfloat16 ? 0x00800080U : 0x04000400U;
        FLASHOMP_UNROLL(4)
        for (const std::uint32_t word : words.x) {
            seen_ |= (word & exponents) + last_places;
        }
    }

    FLASHOMP_INLINE void report(unsigned* nonfinite) const { set_nonfinite(nonfinite, (seen_ & 0x80008000U) != 0); }

private:
    std::uint32_t seen_ = 0;
};

FLASHOMP_INLINE bool is_finite(float x)
{
    return x - x == 0.0F;
}

} // namespace flashomp::offload

#pragma omp end declare target
