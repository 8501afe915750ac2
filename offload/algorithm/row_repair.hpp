// What rounding took from LSE and D of the rows of a query block, and its repair (docs/algorithm.md, section 8, "What
// float32 takes from LSE").
//
// Backward is given two rounded numbers a row: LSE in float32, and O in the tensor's type, from which D' = rowsum(dO∘O)
// follows. An LSE that is off by ε (2^-12 where logits are in the thousands) gives every recomputed probability of the
// row one common factor: P' = P·a, a = e^-ε. Whole rows, which the dQ pass sees, tell both errors:
//
//     ΣP' + P'(sink) = a                     as the true probabilities add up to 1
//     Σ P'∘(dP - D') = a·D - D'·ΣP'          as the true D is Σ P∘dP
//
// Hence a, and D = (Σ P'∘(dP - D') + D'·ΣP') / a. The dQ pass knows both at its end. It divides dQ by a, which is
// exact, because dS is linear in P. Its dS were made with D'. The passes that sum over queries, where a common error
// would add up, subtract the residual log2 a together with LSE, and read the corrected D.
//
// With a softcap, or a program's own score, dS is P∘(dP - D) times a slope, so that Σ dS is not the second sum. The
// tile beside dS can carry only one of the two. In 16 bits that is P∘(dP - D'), as O, and so D', is rounded most; a
// counts as 1. In float32 it is P', as ALiBi takes LSE to the hundreds; D' stays.
//
// Of a shard's keys, which are not all of a row's, neither sum says anything: a counts as 1, and D' stays.
#pragma once

#include "algorithm/forward.hpp"

#pragma omp declare target

namespace flashomp::offload {

/// The sums over the rows of one query block, and in the end what repairs them.
template <bool modified, class Machine>
struct RowRepair {
    using Row = typename Machine::Row;
    typename Machine::Stats sum;   // ΣP'; after finish() the factor that makes dQ of the accumulator: scale / a
    typename Machine::Stats shift; // Σ P'∘(dP - D')
    bool has_slope;
    bool keeps_shift; // the tile beside dS carries P'∘(dP - D')

    FLASHOMP_INLINE RowRepair(const typename Machine::Stats& zero_sum, const typename Machine::Stats& zero_shift,
                              const Params& p, const ScoreOn<Machine>& score)
        : sum(zero_sum), shift(zero_shift), has_slope(modified && score.has_slope()),
          keeps_shift(has_slope & (p.element != Element::float32)) // &, not &&: kernels spill less without the branch
    {
    }

    /// Takes in one tile: dS, and what QueryGradient left beside it.
    FLASHOMP_INLINE void add(Machine& tile, const typename Machine::Scores& beside,
                             const typename Machine::Scores& ds) const
    {
        if (keeps_shift) {
            tile.row_sum(beside, shift);
        } else {
            tile.row_sum(beside, sum);
        }
        if (!has_slope) {
            tile.row_sum(ds, shift);
        }
    }

    /// Writes the residual and the corrected D of `rows` rows from `first` on.
    FLASHOMP_INLINE void finish(Machine& tile, const Params& p, const WorkItem& work, std::int64_t first, int rows,
                                const typename Machine::Stats& lse, const typename Machine::Stats& delta)
    {
        const float scale = p.scale;
        const bool has_sink = p.sink.data != nullptr;
        const bool is_part = p.keys_are_part;
        const float sink = has_sink ? p.sink.data[work.head] : 0.0F;
        float* const saved_delta = row_stats(p.delta, work.batch, work.head, first);
        float* const saved_residual = row_stats(p.residual, work.batch, work.head, first);
        tile.complete(sum);
        tile.complete(shift);
        tile.for_rows(rows, [=, *this](Row r) FLASHOMP_LAMBDA {
            const float sink_p = has_sink ? exp_difference<Machine>(sink, lse[r]) : 0.0F;
            const float keys_p = keeps_shift ? 1.0F - sink_p : sum[r];  // ΣP'
            const float whole_p = keeps_shift ? 1.0F : sum[r] + sink_p; // a, where the row's keys are all here
            const float part_p = lse[r] == infinity ? 0.0F : 1.0F;      // as usable_lse() has a row without keys
            const float all_p = is_part ? part_p : whole_p;
            const float corrected =
                corrected_delta(shift[r], delta[r], keys_p, all_p, is_part || (has_slope && !keeps_shift));
            saved_residual[r] = row_residual(all_p);
            saved_delta[r] = corrected;
            sum[r] = gradient_factor(scale, all_p);
        });
        tile.sync();
    }
};

} // namespace flashomp::offload

#pragma omp end declare target
