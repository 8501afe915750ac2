// Online softmax over blocks of keys (Milakov & Gimelshein 2018; FlashAttention-2, Algorithm 1).
#pragma once

#include "tile/math.hpp"

#pragma omp declare target

namespace flashomp::offload {

/// Running maximum m and denominator l of every resident row.
///
/// After each update, with s the logits seen so far: m = max(s), l = Σ e^(s - m), and the accumulator
/// holds Σ e^(s - m)·v. Rows that have seen only masked keys have m = -inf, l = 0.
template <class Machine>
struct OnlineSoftmax {
    typename Machine::Stats max, sum, base, correction;

    FLASHOMP_INLINE explicit OnlineSoftmax(Machine& tile)
        : max(tile.stats(tile.resident_rows())), sum(tile.stats(tile.resident_rows())),
          base(tile.stats(tile.resident_rows())), correction(tile.stats(tile.resident_rows()))
    {
    }

    /// A sink is a logit without a value: it starts the row instead of a first key.
    FLASHOMP_INLINE void start(Machine& tile, bool has_sink, float sink)
    {
        tile.for_rows(tile.resident_rows(), [=, *this](int r) FLASHOMP_LAMBDA {
            max[r] = has_sink ? sink : -infinity;
            sum[r] = has_sink && sink > -infinity ? 1.0F : 0.0F;
            base[r] = 0.0F;
        });
    }

    /// Takes in one tile of logits and leaves the probabilities e^(s - m) in it; correction is then the
    /// factor that moves what was accumulated before to the new maximum. Row work only: no sync inside.
    FLASHOMP_INLINE void update(Machine& tile, typename Machine::Scores& scores)
    {
        tile.for_rows(tile.resident_rows(), [=, *this](int r) FLASHOMP_LAMBDA { correction[r] = max[r]; });
        tile.row_max(scores, max);
        tile.for_rows(tile.resident_rows(), [=, *this](int r) FLASHOMP_LAMBDA {
            // (-inf) - (-inf) is NaN: a row that has seen nothing subtracts 0 instead, and e^(-inf) stays 0.
            base[r] = max[r] == -infinity ? 0.0F : max[r];
            correction[r] = exp_difference(correction[r], base[r]);
            sum[r] *= correction[r];
        });
        tile.exp_sum(scores, base, sum);
    }

    /// correction = 1/l, the factor that turns the accumulator into the output; 0 where nothing was attended to.
    FLASHOMP_INLINE void finish(Machine& tile, int rows, float* lse)
    {
        tile.for_rows(rows, [=, *this](int r) FLASHOMP_LAMBDA {
            const bool dead = sum[r] == 0.0F; // a NaN is not: it must show
            correction[r] = dead ? 0.0F : 1.0F / sum[r];
            const float alive = sum[r] < infinity ? max[r] + log2_fast(sum[r]) * ln_2 : sum[r];
            lse[r] = dead ? -infinity : alive;
        });
    }
};

} // namespace flashomp::offload

#pragma omp end declare target
