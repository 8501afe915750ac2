// The backward pass, once for every machine (FlashAttention-2, Algorithm 2): P is recomputed from LSE.
//
// Two schedules instead of float atomics, so that the result has the same bits run after run: query blocks in
// place for dQ (and D), key blocks in place for dK and dV. S and dP are computed in both: 7 products instead of
// 5, and no float32 dQ accumulator.
//
// Two things that backward is given are rounded: LSE to float32, which for large logits (|LSE| in the thousands) puts
// one common factor on every P of a row, and O to the tensor's type, which shifts D = rowsum(dO∘O) and so all dS of a
// row. Both show in sums over whole rows, which the dQ pass sees: ΣP must be 1, and Σ P∘dP is D itself. It divides dQ
// by the first and leaves both corrections for the passes that sum over rows, where a common error would add up.
//
//     P = e^(s - LSE)    dV = PᵀdO    dP = dO·Vᵀ    D = rowsum(dO∘O)    dS = P∘(dP - D)    dQ = dS·K    dK = dSᵀ·Q
#pragma once

#include "forward.hpp"

#pragma omp declare target

namespace flashomp::offload {

/// P and dS of one element from its dot product and dP. residual is base 2; an lse of +inf stands for a row without
/// keys.
template <bool modified, bool masked>
struct ScoreGradient {
    Score score;

    FLASHOMP_INLINE float probability(float dot, float lse, float residual, int i, int j) const
    {
        return exp2_fast((score.template operator()<modified, masked>(dot, i, j) - lse) * log2_e - residual);
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

/// D_i = Σ_x dO_ix · O_ix of rows that the crew shares out (FlashAttention-2, Algorithm 2, line 4).
template <class Machine>
FLASHOMP_INLINE void row_delta(Machine& tile, const Rows& o, const Rows& dout, typename Machine::Stats delta)
{
    tile.for_rows(o.count, [=](int r) FLASHOMP_LAMBDA {
        float sum = 0.0F;
        for (int x = 0; x < o.depth; ++x) {
            sum += read_element(o.data, o.element, o.offset + r * o.stride + x) *
                   read_element(dout.data, dout.element, dout.offset + r * dout.stride + x);
        }
        delta[r] = sum;
    });
}

/// dQ and D of one query block.
template <bool modified, class Machine>
FLASHOMP_INLINE void backward_query_block(Machine& tile, const Params& p, const WorkItem& work)
{
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
    auto k = tile.stream(p.head_dim);
    auto v = tile.stream(p.head_dim_v);
    auto s = tile.scores();
    auto ds = tile.scores();
    auto dq = tile.accumulator(p.head_dim);
    auto lse = tile.stats(block_m);
    auto delta = tile.stats(block_m);
    auto sum = tile.stats(block_m);   // ΣP
    auto shift = tile.stats(block_m); // Σ P∘(dP - D)

    const Rows dout_rows = rows_of(p, p.dout, work.batch, work.head, first, rows, p.head_dim_v);
    tile.load(q, rows_of(p, p.q, work.batch, work.head, first, rows, p.head_dim));
    tile.load(dout, dout_rows);
    row_delta(tile, rows_of(p, p.o, work.batch, work.head, first, rows, p.head_dim_v), dout_rows, delta);
    const float* saved_lse = row_stats(p.lse, work.batch, work.head, first);
    float* saved_delta = row_stats(p.delta, work.batch, work.head, first);
    const bool has_sink = p.sink != nullptr;
    const float sink = has_sink ? p.sink[work.head] : 0.0F;
    tile.for_rows(block_m, [=](int r) FLASHOMP_LAMBDA {
        sum[r] = 0.0F;
        shift[r] = 0.0F;
        if (r < rows) {
            lse[r] = usable_lse(saved_lse[r]);
            sum[r] = has_sink ? exp_difference(sink, lse[r]) : 0.0F; // a sink's probability belongs to the row's sum
        } else {
            lse[r] = infinity;
            delta[r] = 0.0F;
        }
    });

    // With a softcap the sum of dS is no longer that of P∘(dP - D), so s carries that instead of P; bounded logits have
    // a good LSE.
    const bool softcap = modified && score.softcap > 0.0F;
    const Range keys = score.band.keys(i0, i0 + rows);
    for (int j0 = keys.begin / block_n * block_n; j0 < keys.end; j0 += block_n) {
        const int columns = seq.k_len - j0 < block_n ? seq.k_len - j0 : block_n;
        tile.load(k, rows_of(p, p.k, work.batch, head_kv, seq.k_start + j0, columns, p.head_dim));
        tile.load(v, rows_of(p, p.v, work.batch, head_kv, seq.k_start + j0, columns, p.head_dim_v));
        tile.sync();
        tile.multiply(s, q, k, [](float dot, int, int) FLASHOMP_LAMBDA { return dot; });
        if (score.is_interior(i0, i0 + block_m, j0, j0 + block_n)) {
            const ScoreGradient<modified, false> gradient{score};
            tile.multiply(ds, dout, v, s, [=](float dp, float& x, int r, int c) FLASHOMP_LAMBDA {
                const float dot = x;
                const float p_rc = gradient.probability(dot, lse[r], 0.0F, i0 + r, j0 + c);
                const float dropout = gradient.dropout(i0 + r, j0 + c);
                x = softcap ? gradient.logit(p_rc, dp, delta[r], dropout) : p_rc;
                return gradient(dot, p_rc, dp, delta[r], dropout);
            });
        } else {
            const ScoreGradient<modified, true> gradient{score};
            tile.multiply(ds, dout, v, s, [=](float dp, float& x, int r, int c) FLASHOMP_LAMBDA {
                const float dot = x;
                const float p_rc = gradient.probability(dot, lse[r], 0.0F, i0 + r, j0 + c);
                const float dropout = gradient.dropout(i0 + r, j0 + c);
                x = softcap ? gradient.logit(p_rc, dp, delta[r], dropout) : p_rc;
                return gradient(dot, p_rc, dp, delta[r], dropout);
            });
        }
        tile.sync();
        if (softcap) {
            tile.row_sum(s, shift);
        } else {
            tile.row_sum(s, sum);
            tile.row_sum(ds, shift);
        }
        tile.accumulate(dq, ds, k);
        tile.sync(); // before the next key block overwrites k and v
    }
    const float scale = p.scale;
    float* saved_residual = row_stats(p.residual, work.batch, work.head, first);
    tile.for_rows(rows, [=](int r) FLASHOMP_LAMBDA {
        const float sink_p = has_sink ? exp_difference(sink, lse[r]) : 0.0F;
        const float keys_p = softcap ? 1.0F - sink_p : sum[r] - sink_p; // ΣP over the keys
        const float all_p = softcap ? 1.0F : sum[r];
        const bool dead = !(all_p > 0.0F);
        saved_residual[r] = dead ? 0.0F : log2_fast(all_p);
        saved_delta[r] = dead ? 0.0F : (shift[r] + delta[r] * keys_p) / all_p;
        sum[r] = dead ? 0.0F : scale / all_p;
    });
    tile.sync();
    tile.store(dq, rows_of(p, p.dq, work.batch, work.head, first, rows, p.head_dim),
               [=](int r) FLASHOMP_LAMBDA { return sum[r]; });
    tile.sync();
}

/// dK and dV of one key block: sums over the query heads of its group and all query blocks, in that order.
template <bool modified, class Machine>
FLASHOMP_INLINE void backward_key_block(Machine& tile, const Params& p, const WorkItem& work)
{
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

    auto k = tile.resident(p.head_dim);
    auto v = tile.resident(p.head_dim_v);
    auto q = tile.stream(p.head_dim);
    auto dout = tile.stream(p.head_dim_v);
    auto pr = tile.scores();
    auto ds = tile.scores();
    auto dk = tile.accumulator(p.head_dim);
    auto dv = tile.accumulator(p.head_dim_v);
    auto lse = tile.stats(block_m);
    auto delta = tile.stats(block_m);
    auto residual = tile.stats(block_m);

    tile.load(k, rows_of(p, p.k, work.batch, work.head, first, rows, p.head_dim));
    tile.load(v, rows_of(p, p.v, work.batch, work.head, first, rows, p.head_dim_v));

    for (int head = work.head * group; head < (work.head + 1) * group; ++head) {
        const Score score(p, seq, work.batch, head);
        const Range queries = score.band.queries(j0, j0 + rows);
        for (int i0 = queries.begin / block_m * block_m; i0 < queries.end; i0 += block_m) {
            const int columns = seq.q_len - i0 < block_m ? seq.q_len - i0 : block_m;
            const std::int64_t first_q = seq.q_start + i0;
            tile.load(q, rows_of(p, p.q, work.batch, head, first_q, columns, p.head_dim));
            tile.load(dout, rows_of(p, p.dout, work.batch, head, first_q, columns, p.head_dim_v));
            const float* saved_lse = row_stats(p.lse, work.batch, head, first_q);
            const float* saved_delta = row_stats(p.delta, work.batch, head, first_q);
            const float* saved_residual = row_stats(p.residual, work.batch, head, first_q);
            tile.for_rows(block_m, [=](int c) FLASHOMP_LAMBDA {
                lse[c] = c < columns ? usable_lse(saved_lse[c]) : infinity;
                delta[c] = c < columns ? saved_delta[c] : 0.0F;
                residual[c] = c < columns ? saved_residual[c] : 0.0F;
            });
            tile.sync();
            tile.multiply(pr, k, q, [](float dot, int, int) FLASHOMP_LAMBDA { return dot; });
            if (score.is_interior(i0, i0 + block_m, j0, j0 + block_n)) {
                const ScoreGradient<modified, false> gradient{score};
                tile.multiply(ds, v, dout, pr, [=](float dp, float& x, int r, int c) FLASHOMP_LAMBDA {
                    const float dot = x;
                    const float p_rc = gradient.probability(dot, lse[c], residual[c], i0 + c, j0 + r);
                    const float dropout = gradient.dropout(i0 + c, j0 + r);
                    x = p_rc * dropout; // what dV sums
                    return gradient(dot, p_rc, dp, delta[c], dropout);
                });
            } else {
                const ScoreGradient<modified, true> gradient{score};
                tile.multiply(ds, v, dout, pr, [=](float dp, float& x, int r, int c) FLASHOMP_LAMBDA {
                    const float dot = x;
                    const float p_rc = gradient.probability(dot, lse[c], residual[c], i0 + c, j0 + r);
                    const float dropout = gradient.dropout(i0 + c, j0 + r);
                    x = p_rc * dropout; // what dV sums
                    return gradient(dot, p_rc, dp, delta[c], dropout);
                });
            }
            tile.sync();
            tile.accumulate(dv, pr, dout);
            tile.accumulate(dk, ds, q);
            tile.sync(); // before the next query block overwrites q and dout
        }
    }
    tile.sync(); // where no query block came by, the zeros of dk and dv are still their writers' own
    const float scale = p.scale;
    tile.store(dk, rows_of(p, p.dk, work.batch, work.head, first, rows, p.head_dim),
               [=](int) FLASHOMP_LAMBDA { return scale; });
    tile.store(dv, rows_of(p, p.dv, work.batch, work.head, first, rows, p.head_dim_v),
               [](int) FLASHOMP_LAMBDA { return 1.0F; });
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
