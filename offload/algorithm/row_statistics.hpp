// What becomes of the statistics of one row, as numbers: the base of the online softmax moves, a row ends, LSE and D
// are repaired. The tile machines (softmax.hpp, row_repair.hpp) and CUDA's Hopper kernels, which lay rows out in other
// ways, share this arithmetic. Arithmetic is whatever has the 2^x of a machine: static float exp2(float).
#pragma once

#include "algorithm/math.hpp"

#pragma omp declare target

namespace flashomp::offload {

/// e^(a - b) by the machine's own exp2.
template <class Arithmetic>
FLASHOMP_INLINE float exp_difference(float a, float b)
{
    return Arithmetic::exp2((a - b) * log2_e);
}

/// The factor that moves what was summed before, the base of a row, and the score above which the base must move.
struct RowBase {
    float correction, base, limit;
};

/// The base after a tile whose largest score is `peak` (OnlineSoftmax says what base, limit, factor and lag are).
template <class Arithmetic>
FLASHOMP_INLINE RowBase moved_base(float peak, float base, float limit, float factor, float lag)
{
    const bool moves = peak > limit;
    const bool is_new = limit == -infinity; // nothing to move yet
    // (-inf) - (-inf) is NaN: a row that has seen nothing keeps a base of 0, and e^(-inf) stays 0.
    return {moves && !is_new ? Arithmetic::exp2((base - peak) * factor) : 1.0F, moves ? peak : base,
            moves ? peak + lag : limit};
}

/// The end of a row: what the online softmax has kept, in regard to the largest logit. Results are computed where they
/// are asked for: g++ spills more registers where both are computed first.
struct RowEnd {
    float top, move; ///< the largest logit, and what moves the row's base there
    float sum;       ///< the denominator, in regard to top

    /// Whether nothing was attended to. A NaN is not dead, and shows.
    FLASHOMP_INLINE bool is_dead() const { return sum == 0.0F; }
    /// Turns the accumulator into the output.
    FLASHOMP_INLINE float factor() const { return is_dead() ? 0.0F : quotient(move, sum); }
    FLASHOMP_INLINE float lse() const
    {
        const float alive = sum < infinity ? top + log2_fast(sum) * ln_2 : sum;
        return is_dead() ? -infinity : alive;
    }
};

/// The end of a row with the denominator `sum` in regard to its base. A sink is one more logit, without a value.
template <class Arithmetic>
FLASHOMP_INLINE RowEnd finished_row(float sum, float base, float limit, float unit, bool has_sink, float sink)
{
    const float seen = limit == -infinity ? -infinity : base * unit;
    const float above = has_sink && sink > seen ? sink : seen;
    const float top = above == -infinity ? 0.0F : above;
    const float move = exp_difference<Arithmetic>(seen, top);
    return {top, move, sum * move + (has_sink ? exp_difference<Arithmetic>(sink, top) : 0.0F)};
}

// The repair of a row (row_repair.hpp): all_p is a, keys_p ΣP', shift Σ P'∘(dP - D').

/// Whether a row has attended to nothing. A NaN is not dead, and shows.
FLASHOMP_INLINE bool is_dead_row(float all_p)
{
    return all_p == 0.0F;
}

/// log2 a
FLASHOMP_INLINE float row_residual(float all_p)
{
    return is_dead_row(all_p) ? 0.0F : log2_fast(all_p);
}

/// D, of `rounded` = D', which stays if keeps_delta.
FLASHOMP_INLINE float corrected_delta(float shift, float rounded, float keys_p, float all_p, bool keeps_delta = false)
{
    const float corrected = keeps_delta ? rounded : quotient(shift + rounded * keys_p, all_p);
    return is_dead_row(all_p) ? 0.0F : corrected;
}

/// What makes dQ of the accumulator: scale / a.
FLASHOMP_INLINE float gradient_factor(float scale, float all_p)
{
    return is_dead_row(all_p) ? 0.0F : quotient(scale, all_p);
}

} // namespace flashomp::offload

#pragma omp end declare target
