// Online softmax over blocks of keys (Milakov & Gimelshein 2018; FlashAttention-2, Algorithm 1).
#pragma once

#include "tile/math.hpp"

#pragma omp declare target

namespace flashomp::offload {

/// e^(a - b) by the machine's own exp2.
template <class Machine>
FLASHOMP_INLINE float exp_difference(float a, float b)
{
    return Machine::exp2((a - b) * log2_e);
}

/// Running maximum m, base b and denominator l of every resident row.
///
/// After each update, with s the logits seen so far: m = max(s), l = Σ e^(s - b), and the accumulator holds
/// Σ e^(s - b)·v. On most machines b = m. One on which moving the accumulator to a new base is dear lets b stay behind
/// m by up to Machine::lag(): the result is the same, as long as e^lag is no trouble for its number format. Rows that
/// have seen only masked keys have m = -inf, b = l = 0.
template <class Machine>
struct OnlineSoftmax {
    using Row = typename Machine::Row;
    typename Machine::Stats max, sum, base, correction;

    FLASHOMP_INLINE explicit OnlineSoftmax(Machine& tile)
        : max(tile.row_stats()), sum(tile.row_stats()), base(tile.row_stats()), correction(tile.row_stats())
    {
        tile.for_rows([=, *this](Row r) FLASHOMP_LAMBDA {
            max[r] = -infinity;
            sum[r] = 0.0F;
            base[r] = 0.0F;
        });
    }

    /// Takes in one tile of logits and leaves the probabilities e^(s - b) in it; correction is then the
    /// factor that moves what was accumulated before to the new base. Row work only: no sync inside.
    FLASHOMP_INLINE void update(Machine& tile, typename Machine::Scores& scores)
    {
        tile.for_rows([=, *this](Row r) FLASHOMP_LAMBDA { correction[r] = max[r]; });
        tile.row_max(scores, max);
        tile.for_rows([=, *this](Row r) FLASHOMP_LAMBDA {
            const bool is_new = correction[r] == -infinity; // nothing to move yet
            const bool moves = max[r] > (is_new ? -infinity : base[r] + Machine::lag());
            correction[r] = (moves && !is_new) ? exp_difference<Machine>(base[r], max[r]) : 1.0F;
            // (-inf) - (-inf) is NaN: a row that has seen nothing keeps a base of 0, and e^(-inf) stays 0.
            base[r] = moves ? max[r] : base[r];
            sum[r] *= correction[r];
        });
        tile.exp_sum(scores, base, sum);
    }

    /// correction = 1/l, the factor that turns the accumulator into the output; 0 where nothing was attended to. A sink
    /// is one more logit, without a value.
    // NOLINTNEXTLINE(readability-non-const-parameter): the lambda writes through lse
    FLASHOMP_INLINE void finish(Machine& tile, int rows, bool has_sink, float sink, float* lse)
    {
        tile.complete(sum);
        tile.for_rows(rows, [=, *this](Row r) FLASHOMP_LAMBDA {
            const float seen = max[r] == -infinity ? -infinity : base[r];
            const float above = has_sink && sink > seen ? sink : seen;
            const float top = above == -infinity ? 0.0F : above;
            const float move = exp_difference<Machine>(seen, top);
            const float l = sum[r] * move + (has_sink ? exp_difference<Machine>(sink, top) : 0.0F);
            const bool dead = l == 0.0F; // a NaN is not: it must show
            correction[r] = dead ? 0.0F : quotient(move, l);
            const float alive = l < infinity ? top + log2_fast(l) * ln_2 : l;
            lse[r] = dead ? -infinity : alive;
        });
    }
};

} // namespace flashomp::offload

#pragma omp end declare target
