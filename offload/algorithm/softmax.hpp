// Online softmax over blocks of keys (Milakov & Gimelshein 2018; FlashAttention-2, Algorithm 1).
#pragma once

#include "algorithm/row_statistics.hpp"

#pragma omp declare target

namespace flashomp::offload {

/// Base b and denominator l of every resident row.
///
/// Scores are logits divided by `unit`: where the scale is all that is done to a dot product, it is multiplied with the
/// factor that makes exp2 of exp (FlashAttention-2, section 3.1), and once a row instead of once a score.
///
/// After each update, with s the scores seen so far: l = Σ e^(unit·(s - b)), and the accumulator holds
/// Σ e^(unit·(s - b))·v. On most machines b = max(s). One on which moving the accumulator to a new base is dear lets b
/// stay behind by up to Machine::lag() in logits: the result is the same, as long as e^lag is no trouble for its number
/// format. `limit` is where b must move. Rows that have seen only masked keys have limit = -inf, b = l = 0.
template <class Machine>
struct OnlineSoftmax {
    using Row = typename Machine::Row;
    typename Machine::Stats sum, base, limit, correction;
    float unit, factor, lag;

    FLASHOMP_INLINE OnlineSoftmax(Machine& tile, float unit_)
        : sum(tile.row_stats()), base(tile.row_stats()), limit(tile.row_stats()), correction(tile.row_stats()),
          unit(unit_), factor(unit_ * log2_e), lag(Machine::lag() == 0.0F ? 0.0F : quotient(Machine::lag(), unit_))
    {
        tile.for_rows([=, *this](Row r) FLASHOMP_LAMBDA {
            sum[r] = 0.0F;
            base[r] = 0.0F;
            limit[r] = -infinity;
        });
    }

    /// Takes in one tile of scores and leaves the probabilities e^(unit·(s - b)) in it. If true, correction is then the
    /// factor that moves what was accumulated before to the new base. Row work only: no sync inside.
    FLASHOMP_INLINE bool update(Machine& tile, typename Machine::Scores& scores)
    {
        if (!tile.may_exceed(scores, limit)) { // most tiles: no need to know the maximum itself
            tile.exp_sum(scores, base, factor, sum);
            return false;
        }
        tile.for_rows([=, *this](Row r) FLASHOMP_LAMBDA { correction[r] = limit[r]; });
        tile.row_max(scores, correction);
        const bool moves_any = tile.any_above(correction, limit);
        if (moves_any) {
            tile.for_rows([=, *this](Row r) FLASHOMP_LAMBDA {
                const RowBase moved = moved_base<Machine>(correction[r], base[r], limit[r], factor, lag);
                correction[r] = moved.correction;
                base[r] = moved.base;
                limit[r] = moved.limit;
                sum[r] *= moved.correction;
            });
        }
        tile.exp_sum(scores, base, factor, sum);
        return moves_any;
    }

    /// Writes LSE; correction becomes the factor that turns the accumulator into the output. Rows that are not there
    /// are computed along: without a condition around each, a thread computes its rows at a time. sinks: of the rows,
    /// at a stride; null: none.
    // NOLINTNEXTLINE(readability-non-const-parameter): the lambda writes through lse
    FLASHOMP_INLINE void finish(Machine& tile, int rows, const float* sinks, int sink_stride, float* lse)
    {
        tile.complete(sum);
        tile.for_rows([=, *this](Row r) FLASHOMP_LAMBDA {
            const bool has_sink = sinks != nullptr;
            const float sink = has_sink ? sinks[(r < rows ? static_cast<int>(r) : 0) * sink_stride] : 0.0F;
            const RowEnd end = finished_row<Machine>(sum[r], base[r], limit[r], unit, has_sink, sink);
            correction[r] = end.factor();
            sum[r] = end.lse();
        });
        tile.sync();
        tile.for_rows(rows, [=, *this](Row r) FLASHOMP_LAMBDA { lse[r] = sum[r]; });
    }
};

} // namespace flashomp::offload

#pragma omp end declare target
