// The backward pass, once for every machine (FlashAttention-2, Algorithm 2): P is recomputed from LSE.
//
// Two schedules, neither with float atomics, so that the result has the same bits run after run:
//
// Two passes: query blocks in place for dQ (and D), key blocks in place for dK and dV. S and dP are computed in both: 7
// products instead of 5, and no crew waits for another.
//
// One pass (KeySums::all), for float32 on host machines that have it: key blocks in place for dK and dV, and what they
// add to dQ goes to memory, key block after key block: a crew waits until the one before has passed the same queries.
//
// Two things that backward is given are rounded: LSE to float32, which for large logits (|LSE| in the thousands) puts
// one common factor on every P of a row, and O to the tensor's type, which shifts D = rowsum(dO∘O) and so all dS of a
// row. Both show in sums over whole rows, which the dQ pass sees: ΣP must be 1, and Σ P∘dP is D itself. It divides dQ
// by the first and leaves both corrections for the passes that sum over rows, where a common error would add up. One
// pass has neither, so it is for float32 with LSE whose rounding is no more than that of the scores.
//
//     P = e^(s - LSE)    dV = PᵀdO    dP = dO·Vᵀ    D = rowsum(dO∘O)    dS = P∘(dP - D)    dQ = dS·K    dK = dSᵀ·Q
#pragma once

#include "algorithm/forward.hpp"
#include "algorithm/head_splits.hpp"
#include "algorithm/one_pass.hpp"

#pragma omp declare target

namespace flashomp::offload {

/// P and dS of one element from its dot product and dP. residual is base 2; an lse of +inf stands for a row without
/// keys.
template <bool modified, bool masked, class Machine>
struct ScoreGradient {
    const Score& score; // a copy of so many fields would not be kept in registers

    /// low: what is to be added to the dot product, from a machine that has it. The difference to LSE, which is small
    /// where P is not, is rounded once, in both passes and under every mask: with logits of thousands P would else be
    /// another by 0.1 %.
    template <class... Low>
    FLASHOMP_INLINE float probability(float dot, float lse, float residual, int i, int j, Low... low) const
    {
        float difference = 0.0F;
        if constexpr (modified) {
            difference = score.template operator()<masked>(dot, i, j) - lse;
        } else {
            difference = fused(score.scale, dot, -lse);
            if constexpr (sizeof...(Low) > 0) {
                difference += score.scale * (low + ...);
            }
            difference = !masked || score.band.keeps(i, j) ? difference : -infinity;
        }
        return Machine::exp2(difference * log2_e - residual);
    }

    /// d(loss)/d(logit after softcap, ALiBi and bias); dp is the gradient of the probability after dropout.
    FLASHOMP_INLINE float logit(float p, float dp, float delta, float dropout) const
    {
        return p * (dp * dropout - delta);
    }

    /// d(loss)/d(scaled dot product)
    FLASHOMP_INLINE float operator()(float dot, float p, float dp, float delta, float dropout) const
    {
        float ds = logit(p, dp, delta, dropout);
        if constexpr (modified) {
            ds *= score.softcap_slope(dot);
        }
        return ds;
    }

    FLASHOMP_INLINE float dropout(int i, int j) const
    {
        if constexpr (modified) {
            return score.dropout(i, j);
        }
        return 1.0F;
    }
};

/// Rows without keys have LSE = -inf, which would make P = e^(+inf): +inf makes it 0.
FLASHOMP_INLINE float usable_lse(float lse)
{
    return lse == -infinity ? infinity : lse;
}

/// What the dQ pass makes of dP: leaves dS, and in the other tile what is summed over the row: P, or P∘(dP - D) where a
/// softcap makes dS something else.
template <bool modified, bool masked, class Machine>
struct QueryGradient {
    ScoreGradient<modified, masked, Machine> gradient;
    typename Machine::Stats lse, delta;
    int i0, j0;
    bool keeps_shift;

    // In two steps, for a machine that has dP late: P, and dS from it without the dot product, as modified scores need
    // it.
    FLASHOMP_INLINE float first(float dot, typename Machine::Row r, int c) const
    {
        return gradient.probability(dot, lse[r], 0.0F, i0 + r, j0 + c);
    }
    FLASHOMP_INLINE float second(float dp, float p, typename Machine::Row r, int /*c*/) const
    {
        return gradient.logit(p, dp, delta[r], 1.0F);
    }

    template <class... Low>
    FLASHOMP_INLINE float operator()(float dp, float& x, typename Machine::Row r, int c, Low... low) const
    {
        const float dot = x;
        const float p = gradient.probability(dot, lse[r], 0.0F, i0 + r, j0 + c, low...);
        const float dropout = gradient.dropout(i0 + r, j0 + c);
        x = keeps_shift ? gradient.logit(p, dp, delta[r], dropout) : p;
        return gradient(dot, p, dp, delta[r], dropout);
    }
};

/// dQ and D of one query block.
template <bool modified, class Machine>
FLASHOMP_INLINE void backward_query_block(Machine& tile, const Params& p, const WorkItem& work)
{
    using Row = typename Machine::Row;
    using Stage = typename Machine::Stage;
    const Sequence seq = sequence(p, work.batch);
    const int block_m = tile.resident_rows();
    const int block_n = tile.stream_rows();
    const int i0 = work.block * block_m;
    if (i0 >= seq.q_len) {
        return;
    }
    const int rows = seq.q_len - i0 < block_m ? seq.q_len - i0 : block_m;
    const int head_kv = work.head / (p.heads_q / p.heads_kv);
    const std::int64_t first = seq.q_start + i0;
    const Score score(p, seq, work.batch, work.head);

    auto q = tile.resident(p.head_dim);
    auto dout = tile.resident(p.head_dim_v);
    auto k = tile.stream(p.k, p.head_dim, StreamUse::both);
    auto v = tile.stream(p.v, p.head_dim_v, StreamUse::scores);
    auto s = tile.scores(modified ? ScoreUse::values : ScoreUse::exponents);
    auto ds = tile.scores();
    auto dq = tile.accumulator(p.head_dim);
    auto lse = tile.row_stats();
    auto delta = tile.row_stats();
    auto sum = tile.row_stats();   // ΣP
    auto shift = tile.row_stats(); // Σ P∘(dP - D)

    // D_i = Σ_x dO_ix · O_ix (FlashAttention-2, Algorithm 2, line 4)
    const Rows dout_rows = rows_of(p, p.dout, work.batch, work.head, first, rows, p.head_dim_v);
    tile.load(q, rows_of(p, p.q, work.batch, work.head, first, rows, p.head_dim));
    tile.load(dout, dout_rows);
    tile.row_dot(rows_of(p, p.o, work.batch, work.head, first, rows, p.head_dim_v), dout_rows, delta);
    const float* saved_lse = row_stats(p.lse, work.batch, work.head, first);
    tile.for_rows([=](Row r) FLASHOMP_LAMBDA {
        lse[r] = r < rows ? usable_lse(saved_lse[r]) : infinity;
        delta[r] = r < rows ? delta[r] : 0.0F;
        sum[r] = 0.0F;
        shift[r] = 0.0F;
    });

    // With a softcap the sum of dS is no longer that of P∘(dP - D), and s can carry only one of that and P. In 16 bits
    // O, and so D, is what is rounded most; in float32 it is LSE, which ALiBi takes to the hundreds.
    const bool softcap = modified && score.softcap > 0.0F;
    const bool keeps_shift = softcap && p.element != Element::float32;
    const int last = loaded_keys<Machine>(score, seq, i0, i0 + rows);
    const Rows all_k = StridedKeys::keys(p, seq, work.batch, head_kv, 0, last);
    const Rows all_v = StridedKeys::values(p, seq, work.batch, head_kv, 0, last);
    const auto load = [&](int j0, Stage stage, Load what) FLASHOMP_LAMBDA {
        if (what == Load::for_scores) {
            tile.load(k[stage], slice(all_k, j0, block_n));
            tile.load(v[stage], slice(all_v, j0, block_n));
        }
    };
    const auto multiply = [&](int, Stage stage) FLASHOMP_LAMBDA { tile.multiply(s, q, k[stage], ds, dout, v[stage]); };
    const Range interior = score.interior_keys(i0, i0 + block_m);
    const auto attend = [&](int j0, Stage stage) FLASHOMP_LAMBDA {
        tile.finish(s, ds);
        if ((j0 >= interior.begin) & (j0 + block_n <= interior.end)) {
            tile.combine(ds, s, QueryGradient<modified, false, Machine>{{score}, lse, delta, i0, j0, keeps_shift});
        } else {
            if (!modified && score.key_padding != nullptr) {
                tile.sync();
                tile.map(s, PaddedKeys<false>{score, j0});
                tile.sync();
            }
            tile.combine(ds, s, QueryGradient<modified, true, Machine>{{score}, lse, delta, i0, j0, keeps_shift});
        }
        tile.sync();
        if constexpr (LeavesOutHidden<Machine>) {
            tile.keep(s, VisiblePairs<false>{score, i0, j0});
            tile.keep(ds, VisiblePairs<false>{score, i0, j0});
            tile.sync();
        }
        if (keeps_shift) {
            tile.row_sum(s, shift);
        } else {
            tile.row_sum(s, sum);
        }
        if (!softcap) {
            tile.row_sum(ds, shift);
        }
        tile.accumulate(dq, ds, k[stage]);
    };
    if constexpr (LeavesOutPadding<Machine>) {
        tile.for_blocks(key_tiles<Machine>(score, i0, i0 + rows, block_n), block_n, load, multiply, attend);
    } else {
        const Range keys = score.band.keys(i0, i0 + rows);
        tile.for_blocks({keys.begin / block_n * block_n, keys.end}, block_n, load, multiply, attend);
    }

    const float scale = p.scale;
    const bool has_sink = p.sink != nullptr;
    const float sink = has_sink ? p.sink[work.head] : 0.0F;
    float* saved_delta = row_stats(p.delta, work.batch, work.head, first);
    float* saved_residual = row_stats(p.residual, work.batch, work.head, first);
    tile.complete(sum);
    tile.complete(shift);
    tile.for_rows(rows, [=](Row r) FLASHOMP_LAMBDA {
        const float sink_p = has_sink ? exp_difference<Machine>(sink, lse[r]) : 0.0F; // belongs to the row's sum
        const float keys_p = keeps_shift ? 1.0F - sink_p : sum[r];                    // ΣP over the keys
        const float all_p = keeps_shift ? 1.0F : sum[r] + sink_p;
        const bool dead = all_p == 0.0F; // a NaN is not: it must show
        const float corrected = softcap && !keeps_shift ? delta[r] : quotient(shift[r] + delta[r] * keys_p, all_p);
        saved_residual[r] = dead ? 0.0F : log2_fast(all_p);
        saved_delta[r] = dead ? 0.0F : corrected;
        sum[r] = dead ? 0.0F : quotient(scale, all_p);
    });
    tile.sync();
    tile.store(dq, results_of(p, p.dq, work.batch, work.head, first, rows, p.head_dim),
               [=](Row r) FLASHOMP_LAMBDA { return sum[r]; });
    tile.sync();
}

/// What the dK/dV pass makes of dP: leaves dS, and in the other tile the P that dV sums. Rows are keys here, columns
/// queries.
template <bool modified, bool masked, class Machine>
struct KeyGradient {
    ScoreGradient<modified, masked, Machine> gradient;
    typename Machine::ColumnStatsBlock lse, delta, residual;
    int i0, j0;

    // The two steps, as of QueryGradient.
    FLASHOMP_INLINE float first(float dot, typename Machine::Row r, int c) const
    {
        return gradient.probability(dot, usable_lse(lse[c]), residual[c], i0 + c, j0 + r);
    }
    FLASHOMP_INLINE float second(float dp, float p, typename Machine::Row /*r*/, int c) const
    {
        return gradient.logit(p, dp, delta[c], 1.0F);
    }

    template <class... Low>
    FLASHOMP_INLINE float operator()(float dp, float& x, typename Machine::Row r, int c, Low... low) const
    {
        const float dot = x;
        const float p = gradient.probability(dot, usable_lse(lse[c]), residual[c], i0 + c, j0 + r, low...);
        const float dropout = gradient.dropout(i0 + c, j0 + r);
        x = p * dropout;
        return gradient(dot, p, dp, delta[c], dropout);
    }
};

/// The P that dV sums, where dK is not computed along with it. Rows are keys, columns queries.
template <bool modified, bool masked, class Machine>
struct KeyProbability {
    ScoreGradient<modified, masked, Machine> gradient;
    typename Machine::ColumnStatsBlock lse, residual;
    int i0, j0;

    FLASHOMP_INLINE float operator()(float dot, typename Machine::Row r, int c) const
    {
        return gradient.probability(dot, usable_lse(lse[c]), residual[c], i0 + c, j0 + r) *
               gradient.dropout(i0 + c, j0 + r);
    }
};

/// What a pass over key blocks computes: dK and dV, or, on a machine that has no room for two accumulators, one of them
/// at a time; or dQ as well.
enum class KeySums { both, keys, values, all };

/// dK and dV of one key block: sums over the query heads of its group, or with head_splits of the item's part of them,
/// and all query blocks, in that order.
template <bool modified, KeySums sums = KeySums::both, class Machine>
FLASHOMP_INLINE void backward_key_block(Machine& tile, const Params& p, const WorkItem& work)
{
    using Row = typename Machine::Row;
    using Stage = typename Machine::Stage;
    const Sequence seq = sequence(p, work.batch);
    const int block_n = tile.resident_rows();
    const int block_m = tile.stream_rows();
    const int j0 = work.block * block_n;
    if (j0 >= seq.k_len) {
        return;
    }
    const int rows = seq.k_len - j0 < block_n ? seq.k_len - j0 : block_n;
    const int group = p.heads_q / p.heads_kv;
    const std::int64_t first = seq.k_start + j0;

    constexpr bool has_keys = sums != KeySums::values;
    constexpr bool has_values = sums != KeySums::keys;
    constexpr bool has_queries = sums == KeySums::all;
    auto k = [&]() FLASHOMP_LAMBDA {
        if constexpr (has_queries) {
            return tile.resident(p.head_dim, ResidentUse::both);
        } else {
            return tile.resident(p.head_dim);
        }
    }();
    [[maybe_unused]] auto v = has_keys ? tile.resident(p.head_dim_v) : typename Machine::Resident{};
    auto q = tile.stream(p.q, p.head_dim, has_keys ? StreamUse::both : StreamUse::scores);
    auto dout = tile.stream(p.dout, p.head_dim_v, has_values ? StreamUse::both : StreamUse::scores);
    auto pr = tile.scores(modified || !has_keys ? ScoreUse::values : ScoreUse::exponents);
    [[maybe_unused]] auto ds = tile.scores();
    [[maybe_unused]] auto dk = tile.accumulator(p.head_dim);
    [[maybe_unused]] auto dv = tile.accumulator(p.head_dim_v);
    auto lse = tile.column_stats();
    auto delta = tile.column_stats();
    auto residual = tile.column_stats();
    [[maybe_unused]] auto dq = [&]() FLASHOMP_LAMBDA {
        if constexpr (has_queries) {
            return tile.streamed_sums(p.head_dim);
        } else {
            return 0;
        }
    }();

    tile.load(k, StridedKeys::keys(p, seq, work.batch, work.head, j0, rows));
    if constexpr (has_keys) {
        tile.load(v, StridedKeys::values(p, seq, work.batch, work.head, j0, rows));
    }
    if constexpr (has_queries) {
        if (p.key_padding_mask != nullptr) { // else what a hidden key holds would reach all of dQ
            const std::uint8_t* const seen = p.key_padding_mask + work.batch * p.key_padding_batch_stride + j0;
            const auto is_hidden = [=](int r) FLASHOMP_LAMBDA { return r < rows && seen[r] == 0; };
            tile.clear_rows(k, is_hidden);
            tile.clear_rows(v, is_hidden);
        }
    }

    const int share = group / head_splits(p); // query heads of this item
    const int first_head = work.head * group + work.split * share;
    for (int head = first_head; head < first_head + share; ++head) {
        const Score score(p, seq, work.batch, head);
        const Rows all_q = rows_of(p, p.q, work.batch, head, seq.q_start, seq.q_len, p.head_dim);
        const Rows all_dout = rows_of(p, p.dout, work.batch, head, seq.q_start, seq.q_len, p.head_dim_v);
        const float* const all_lse = row_stats(p.lse, work.batch, head, seq.q_start);
        const float* const all_delta = row_stats(p.delta, work.batch, head, seq.q_start);
        const float* const all_residual = row_stats(p.residual, work.batch, head, seq.q_start);
        const auto load = [&](int i0, Stage stage, Load what) FLASHOMP_LAMBDA {
            if (what == Load::for_sums) {
                return;
            }
            const Rows rows_q = slice(all_q, i0, block_m);
            tile.load(q[stage], rows_q);
            tile.load(dout[stage], slice(all_dout, i0, block_m));
            tile.load(lse[stage], all_lse + i0, rows_q.count);
            tile.load(delta[stage], all_delta + i0, rows_q.count);
            tile.load(residual[stage], all_residual + i0, rows_q.count);
        };
        const auto multiply = [&](int, Stage stage) FLASHOMP_LAMBDA {
            if constexpr (has_keys) {
                tile.multiply(pr, k, q[stage], ds, v, dout[stage]);
            } else {
                tile.multiply(pr, k, q[stage]);
            }
        };
        const Range interior = score.interior_queries(j0, j0 + block_n);
        const auto attend = [&](int i0, Stage stage) FLASHOMP_LAMBDA {
            if constexpr (has_keys) {
                tile.finish(pr, ds);
            } else {
                tile.finish(pr);
            }
            if ((i0 >= interior.begin) & (i0 + block_m <= interior.end)) {
                if constexpr (has_keys) {
                    using Gradient = KeyGradient<modified, false, Machine>;
                    tile.combine(ds, pr, Gradient{{score}, lse[stage], delta[stage], residual[stage], i0, j0});
                } else {
                    using Probability = KeyProbability<modified, false, Machine>;
                    tile.map(pr, Probability{{score}, lse[stage], residual[stage], i0, j0});
                }
            } else {
                if (!modified && score.key_padding != nullptr) {
                    tile.sync();
                    tile.map(pr, PaddedKeys<true>{score, j0});
                    tile.sync();
                }
                if constexpr (has_keys) {
                    using Gradient = KeyGradient<modified, true, Machine>;
                    tile.combine(ds, pr, Gradient{{score}, lse[stage], delta[stage], residual[stage], i0, j0});
                } else {
                    using Probability = KeyProbability<modified, true, Machine>;
                    tile.map(pr, Probability{{score}, lse[stage], residual[stage], i0, j0});
                }
            }
            tile.sync();
            if constexpr (LeavesOutHidden<Machine>) {
                tile.keep(pr, VisiblePairs<true>{score, i0, j0});
                tile.keep(ds, VisiblePairs<true>{score, i0, j0});
                tile.sync();
            }
            if constexpr (has_values) {
                tile.accumulate(dv, pr, dout[stage]);
            }
            if constexpr (has_keys) {
                tile.accumulate(dk, ds, q[stage]);
            }
            if constexpr (has_queries) {
                tile.project(dq, ds, k);
                add_by_turns(tile, dq, p, {work.batch, head, i0, work.block}, seq, score.band);
            }
        };
        const Range queries = score.band.queries(j0, j0 + rows);
        tile.for_blocks({queries.begin / block_m * block_m, queries.end}, block_m, load, multiply, attend);
    }
    tile.sync(); // where no query block came by, the zeros of dk and dv are still their writers' own
    [[maybe_unused]] const float scale = p.scale;
    const auto rows_in = [&](const Tensor& gradient, float* partial, int depth) FLASHOMP_LAMBDA {
        return head_splits(p) > 1 ? partial_rows(p, partial, work.split, work.batch, work.head, first, rows, depth)
                                  : results_of(p, gradient, work.batch, work.head, first, rows, depth);
    };
    if constexpr (has_keys) {
        tile.store(dk, rows_in(p.dk, p.partial_dk, p.head_dim), [=](Row) FLASHOMP_LAMBDA { return scale; });
    }
    if constexpr (has_values) {
        tile.store(dv, rows_in(p.dv, p.partial_dv, p.head_dim_v), [](Row) FLASHOMP_LAMBDA { return 1.0F; });
    }
    tile.sync();
}

/// Floats of crew memory that backward_query_block reserves.
template <class Machine>
constexpr std::int64_t backward_query_floats(int block_m, int block_n, int head_dim, int head_dim_v)
{
    return Machine::resident_floats(block_m, head_dim) + Machine::resident_floats(block_m, head_dim_v) +
           Machine::stream_floats(block_n, head_dim) + Machine::stream_floats(block_n, head_dim_v) +
           2 * Machine::scores_floats(block_m, block_n) + Machine::accumulator_floats(block_m, head_dim) +
           4 * Machine::stats_floats(block_m);
}

/// Floats of crew memory that backward_key_block reserves.
template <class Machine>
constexpr std::int64_t backward_key_floats(int block_n, int block_m, int head_dim, int head_dim_v)
{
    return Machine::resident_floats(block_n, head_dim) + Machine::resident_floats(block_n, head_dim_v) +
           Machine::stream_floats(block_m, head_dim) + Machine::stream_floats(block_m, head_dim_v) +
           2 * Machine::scores_floats(block_n, block_m) + Machine::accumulator_floats(block_n, head_dim) +
           Machine::accumulator_floats(block_n, head_dim_v) + 3 * Machine::stats_floats(block_m);
}

} // namespace flashomp::offload

#pragma omp end declare target
