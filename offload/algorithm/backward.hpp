// The backward pass, once for every machine (FlashAttention-2, Algorithm 2): P is recomputed from LSE.
//
//     P = e^(s - LSE)    dV = PᵀdO    dP = dO·Vᵀ    D = rowsum(dO∘O)    dS = P∘(dP - D)    dQ = dS·K    dK = dSᵀ·Q
//
// Two schedules, neither with sums in the order of arrival, so that the result has the same bits run after run:
//
// Two passes, here: query blocks in place for dQ (and D), key blocks in place for dK and dV. S and dP are computed in
// both: 7 products instead of 5, and no crew waits for another. The dQ pass also repairs what rounding took from LSE
// and D (row_repair.hpp).
//
// One pass (one_pass.hpp), for float32 on hosts and 16 bits on Hopper: key blocks in place for all three, no repair.
#pragma once

#include "algorithm/forward.hpp"
#include "algorithm/head_splits.hpp"
#include "algorithm/masked_tile.hpp"
#include "algorithm/row_repair.hpp"
#include "algorithm/score_gradient.hpp"
#include "algorithm/turns.hpp"

#pragma omp declare target

namespace flashomp::offload {

/// The two products of one tile to dS, by the gradient that make<masked, known>() returns; in s is then what that
/// leaves there.
template <bool modified, bool keys_are_rows, class Machine, class Make>
FLASHOMP_INLINE void score_gradients(Machine& tile, typename Machine::Scores& s, typename Machine::Scores& ds,
                                     const PairsOn<Machine>& pairs, const Make& make)
{
    tile.finish(s, ds);
    with_mask<modified, keys_are_rows>(tile, s, pairs, [&]<bool masked>() FLASHOMP_LAMBDA {
        with_known<modified, masked, Machine>(pairs.score, [&]<Known known>() FLASHOMP_LAMBDA {
            tile.combine(ds, s, make.template operator()<masked, known>());
        });
    });
    tile.sync();
    if constexpr (LeavesOutHidden<Machine>) {
        tile.keep(s, VisiblePairs<keys_are_rows, ScoreOn<Machine>>{pairs.score, pairs.i0, pairs.j0});
        tile.keep(ds, VisiblePairs<keys_are_rows, ScoreOn<Machine>>{pairs.score, pairs.i0, pairs.j0});
        tile.sync();
    }
}

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
    const ScoreOn<Machine> score(p, seq, work.batch, work.head);
    const TileRow tiles(score.mask, work.block);

    auto q = tile.resident(p.head_dim);
    auto dout = tile.resident(p.head_dim_v);
    auto k = tile.stream(p.k, p.head_dim, StreamUse::both);
    auto v = tile.stream(p.v, p.head_dim_v, StreamUse::scores);
    auto s = tile.scores(modified ? ScoreUse::values : ScoreUse::exponents);
    auto ds = tile.scores();
    auto dq = tile.accumulator(p.head_dim);
    auto lse = tile.row_stats();
    auto delta = tile.row_stats();
    auto sum = tile.row_stats(); // these two for RowRepair
    auto shift = tile.row_stats();

    // On its way while the blocks come.
    const float* saved_lse = row_stats(p.lse, work.batch, work.head, first);
    tile.for_rows([=](Row r) FLASHOMP_LAMBDA { lse[r] = r < rows ? saved_lse[r] : infinity; });

    // D_i = Σ_x dO_ix · O_ix (FlashAttention-2, Algorithm 2, line 4)
    const Rows dout_rows = rows_of(p, p.dout, work.batch, work.head, first, rows, p.head_dim_v);
    tile.load(q, rows_of(p, p.q, work.batch, work.head, first, rows, p.head_dim));
    tile.load(dout, dout_rows);
    tile.row_dot(written_rows(p, p.o, work.batch, work.head, first, rows, p.head_dim_v), dout_rows, delta);
    tile.for_rows([=](Row r) FLASHOMP_LAMBDA {
        lse[r] = usable_lse(lse[r]);
        delta[r] = r < rows ? delta[r] : 0.0F;
        sum[r] = 0.0F;
        shift[r] = 0.0F;
    });
    RowRepair<modified, Machine> repair(sum, shift, p, score);

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
        const PairsOn<Machine> pairs{score, interior, i0, j0, !TakesMasks<Machine> || tiles.is_whole(j0 / block_n)};
        score_gradients<modified, false>(tile, s, ds, pairs, [&]<bool masked, Known known>() FLASHOMP_LAMBDA {
            return QueryGradient<modified, masked, Machine, known>{{score}, lse, delta, i0, j0, repair.keeps_shift};
        });
        repair.add(tile, s, ds);
        tile.accumulate(dq, ds, k[stage]);
    };
    if constexpr (LeavesOutPadding<Machine>) {
        for_kept_blocks(tile, tiles, key_tiles<Machine>(score, i0, i0 + rows, block_n), block_n, load, multiply,
                        attend);
    } else {
        const Range keys = score.band.keys(i0, i0 + rows);
        for_kept_blocks(tile, tiles, {keys.begin / block_n * block_n, keys.end}, block_n, load, multiply, attend);
    }

    repair.finish(tile, p, work, first, rows, lse, delta);
    tile.store(dq, results_of(p, p.dq, work.batch, work.head, first, rows, p.head_dim),
               [=](Row r) FLASHOMP_LAMBDA { return repair.sum[r]; });
    tile.sync();
}

/// The keys of one item of a pass over key blocks.
struct KeyBlock {
    const Sequence& seq;
    int j0, rows;
    std::int64_t first; ///< row of the tensors

    FLASHOMP_INLINE KeyBlock(const Sequence& seq_, const WorkItem& work, int block_n)
        : seq(seq_), j0(work.block * block_n), rows(seq.k_len - j0 < block_n ? seq.k_len - j0 : block_n),
          first(seq.k_start + j0)
    {
    }
};

/// What streams past a key block beside Q and dO: one number a query.
template <class Machine>
struct QueryStats {
    typename Machine::ColumnStats lse, delta, residual;

    FLASHOMP_INLINE explicit QueryStats(Machine& tile)
        : lse(tile.column_stats()), delta(tile.column_stats()), residual(tile.column_stats())
    {
    }
};

/// The same of one query head: all that streams.
struct HeadStreams {
    Rows q, dout;
    const float *lse, *delta, *residual;

    FLASHOMP_INLINE HeadStreams(const Params& p, const Sequence& seq, int batch, int head)
        : q(rows_of(p, p.q, batch, head, seq.q_start, seq.q_len, p.head_dim)),
          dout(rows_of(p, p.dout, batch, head, seq.q_start, seq.q_len, p.head_dim_v)),
          lse(row_stats(p.lse, batch, head, seq.q_start)), delta(row_stats(p.delta, batch, head, seq.q_start)),
          residual(row_stats(p.residual, batch, head, seq.q_start))
    {
    }
};

/// A T of the arguments; where a machine has too few registers for what its loop seldom needs, in a place that all
/// its threads reach soon.
template <class T, class Machine, class... Arguments>
FLASHOMP_INLINE decltype(auto) kept([[maybe_unused]] Machine& tile, const Arguments&... arguments)
{
    if constexpr (SendingMachine<Machine>) {
        return tile.template keep<T>(arguments...);
    } else {
        return T(arguments...);
    }
}

/// Streams the queries that see a key block past it: those of the query heads of its group, or with head_splits of the
/// item's part of them, in that order. multiply(stage) begins a tile's products, attend(pairs, stage) uses them, and
/// begin_first(head) is for machines that begin S a tile before.
template <class Machine, class BeginFirst, class Multiply, class Attend>
FLASHOMP_INLINE void for_queries(Machine& tile, const Params& p, const WorkItem& work, const KeyBlock& keys,
                                 typename Machine::Stream& q, typename Machine::Stream& dout,
                                 QueryStats<Machine>& stats, [[maybe_unused]] const BeginFirst& begin_first,
                                 const Multiply& multiply, const Attend& attend)
{
    using Stage = typename Machine::Stage;
    const Sequence& seq = keys.seq;
    const int block_n = tile.resident_rows();
    const int block_m = tile.stream_rows();
    const int j0 = keys.j0;
    const int group = p.heads_q / p.heads_kv;
    const int share = group / head_splits(p); // query heads of this item
    const int first_head = work.head * group + work.split * share;
    for (int head = first_head; head < first_head + share; ++head) {
        const ScoreOn<Machine> score(p, seq, work.batch, head);
        const TileRow tiles(score.mask, work.block);
        const HeadStreams& from = kept<HeadStreams>(tile, p, seq, work.batch, head);
        const auto load = [&](int i0, Stage stage, Load what) FLASHOMP_LAMBDA {
            if (what == Load::for_sums) {
                return;
            }
            const Rows rows_q = slice(from.q, i0, block_m);
            tile.load(q[stage], rows_q);
            tile.load(dout[stage], slice(from.dout, i0, block_m));
            if constexpr (!SendingMachine<Machine>) { // else its exponent is in the residual's place
                tile.load(stats.lse[stage], from.lse + i0, rows_q.count);
            }
            tile.load(stats.delta[stage], from.delta + i0, rows_q.count);
            tile.load(stats.residual[stage], from.residual + i0, rows_q.count);
        };
        const auto begin = [&](int, Stage stage) FLASHOMP_LAMBDA { multiply(stage); };
        // Keys past the end have P = e^-LSE, which may overflow: project() would multiply it by their zeros.
        const bool has_interior = !SendingMachine<Machine> || keys.rows == block_n;
        const Range interior = has_interior ? score.interior_queries(j0, j0 + block_n) : Range{};
        const auto use = [&](int i0, Stage stage) FLASHOMP_LAMBDA {
            const bool is_whole = !TakesMasks<Machine> || tiles.is_whole(i0 / block_m);
            attend(PairsOn<Machine>{score, interior, i0, j0, is_whole}, stage);
        };
        if constexpr (SendingMachine<Machine>) {
            const Range seeing = seeing_query_blocks(score.band, work.block, block_m, block_n);
            const int end = seeing.end * block_m < seq.q_len ? seeing.end * block_m : seq.q_len;
            int start = seeing.begin;
            if (work.order == KeyOrder::rotating) { // then all keys see all queries
                start = first_query_block(work.block, (seq.k_len + block_n - 1) / block_n, seeing.end);
            }
            const auto begin_head = [&]() FLASHOMP_LAMBDA { begin_first(head); };
            tile.for_blocks({seeing.begin * block_m, end}, start * block_m, block_m, begin_head, load, begin, use);
        } else {
            const Range queries = score.band.queries(j0, j0 + keys.rows);
            for_kept_blocks(tile, tiles, {queries.begin / block_m * block_m, queries.end}, block_m, load, begin, use);
        }
    }
    tile.sync(); // where no query block came by, the zeros of the accumulators are still their writers' own
}

/// The same for machines that begin each tile when it comes.
template <class Machine, class Multiply, class Attend>
FLASHOMP_INLINE void for_queries(Machine& tile, const Params& p, const WorkItem& work, const KeyBlock& keys,
                                 typename Machine::Stream& q, typename Machine::Stream& dout,
                                 QueryStats<Machine>& stats, const Multiply& multiply, const Attend& attend)
{
    const auto begin_first = [](int) FLASHOMP_LAMBDA {};
    for_queries(tile, p, work, keys, q, dout, stats, begin_first, multiply, attend);
}

/// dS of one tile whose rows are keys, and beside it the P that dV sums.
template <bool modified, class Machine>
FLASHOMP_INLINE void key_gradients(Machine& tile, typename Machine::Scores& pr, typename Machine::Scores& ds,
                                   const PairsOn<Machine>& pairs, QueryStats<Machine>& stats,
                                   typename Machine::Stage stage)
{
    score_gradients<modified, true>(tile, pr, ds, pairs, [&]<bool masked, Known known>() FLASHOMP_LAMBDA {
        using Gradient = KeyGradient<modified, masked, Machine, known>;
        return Gradient{{pairs.score}, stats.lse[stage], stats.delta[stage], stats.residual[stage], pairs.i0, pairs.j0};
    });
}

/// Writes dK or dV of a key block: to the results, or with head_splits to the item's part of them.
template <class Machine>
FLASHOMP_INLINE void store_key_sums(Machine& tile, const typename Machine::Accumulator& sums, const Params& p,
                                    const WorkItem& work, const KeyBlock& keys, const Tensor& gradient, float* partial,
                                    int depth, float factor)
{
    const Rows rows = head_splits(p) > 1
                          ? partial_rows(p, partial, work.split, work.batch, work.head, keys.first, keys.rows, depth)
                          : results_of(p, gradient, work.batch, work.head, keys.first, keys.rows, depth);
    tile.store(sums, rows, [=](typename Machine::Row) FLASHOMP_LAMBDA { return factor; });
}

/// dK and dV of one key block.
template <bool modified, class Machine>
FLASHOMP_INLINE void backward_keys_and_values(Machine& tile, const Params& p, const WorkItem& work,
                                              const KeyBlock& keys)
{
    using Stage = typename Machine::Stage;
    auto k = tile.resident(p.head_dim);
    auto v = tile.resident(p.head_dim_v);
    auto q = tile.stream(p.q, p.head_dim, StreamUse::both);
    auto dout = tile.stream(p.dout, p.head_dim_v, StreamUse::both);
    auto pr = tile.scores(modified ? ScoreUse::values : ScoreUse::exponents);
    auto ds = tile.scores();
    auto dk = tile.accumulator(p.head_dim);
    auto dv = tile.accumulator(p.head_dim_v);
    QueryStats<Machine> stats(tile);

    tile.load(k, StridedKeys::keys(p, keys.seq, work.batch, work.head, keys.j0, keys.rows));
    tile.load(v, StridedKeys::values(p, keys.seq, work.batch, work.head, keys.j0, keys.rows));
    const auto multiply = [&](Stage stage) FLASHOMP_LAMBDA { tile.multiply(pr, k, q[stage], ds, v, dout[stage]); };
    const auto attend = [&](const PairsOn<Machine>& pairs, Stage stage) FLASHOMP_LAMBDA {
        key_gradients<modified>(tile, pr, ds, pairs, stats, stage);
        tile.accumulate(dv, pr, dout[stage]);
        tile.accumulate(dk, ds, q[stage]);
    };
    for_queries(tile, p, work, keys, q, dout, stats, multiply, attend);
    const float scale = p.scale;
    store_key_sums(tile, dk, p, work, keys, p.dk, p.partial_dk, p.head_dim, scale);
    store_key_sums(tile, dv, p, work, keys, p.dv, p.partial_dv, p.head_dim_v, 1.0F);
    tile.sync();
}

/// dK alone.
template <bool modified, class Machine>
FLASHOMP_INLINE void backward_keys(Machine& tile, const Params& p, const WorkItem& work, const KeyBlock& keys)
{
    using Stage = typename Machine::Stage;
    auto k = tile.resident(p.head_dim);
    auto v = tile.resident(p.head_dim_v);
    auto q = tile.stream(p.q, p.head_dim, StreamUse::both);
    auto dout = tile.stream(p.dout, p.head_dim_v, StreamUse::scores);
    auto pr = tile.scores(modified ? ScoreUse::values : ScoreUse::exponents);
    auto ds = tile.scores();
    auto dk = tile.accumulator(p.head_dim);
    QueryStats<Machine> stats(tile);

    tile.load(k, StridedKeys::keys(p, keys.seq, work.batch, work.head, keys.j0, keys.rows));
    tile.load(v, StridedKeys::values(p, keys.seq, work.batch, work.head, keys.j0, keys.rows));
    const auto multiply = [&](Stage stage) FLASHOMP_LAMBDA { tile.multiply(pr, k, q[stage], ds, v, dout[stage]); };
    const auto attend = [&](const PairsOn<Machine>& pairs, Stage stage) FLASHOMP_LAMBDA {
        key_gradients<modified>(tile, pr, ds, pairs, stats, stage);
        tile.accumulate(dk, ds, q[stage]);
    };
    for_queries(tile, p, work, keys, q, dout, stats, multiply, attend);
    const float scale = p.scale;
    store_key_sums(tile, dk, p, work, keys, p.dk, p.partial_dk, p.head_dim, scale);
    tile.sync();
}

/// dV alone, which needs neither dP nor dS.
template <bool modified, class Machine>
FLASHOMP_INLINE void backward_values(Machine& tile, const Params& p, const WorkItem& work, const KeyBlock& keys)
{
    using Stage = typename Machine::Stage;
    auto k = tile.resident(p.head_dim);
    auto q = tile.stream(p.q, p.head_dim, StreamUse::scores);
    auto dout = tile.stream(p.dout, p.head_dim_v, StreamUse::both);
    auto pr = tile.scores();
    auto dv = tile.accumulator(p.head_dim_v);
    QueryStats<Machine> stats(tile);

    tile.load(k, StridedKeys::keys(p, keys.seq, work.batch, work.head, keys.j0, keys.rows));
    const auto multiply = [&](Stage stage) FLASHOMP_LAMBDA { tile.multiply(pr, k, q[stage]); };
    const auto attend = [&](const PairsOn<Machine>& pairs, Stage stage) FLASHOMP_LAMBDA {
        tile.finish(pr);
        with_mask<modified, true>(tile, pr, pairs, [&]<bool masked>() FLASHOMP_LAMBDA {
            with_known<modified, masked, Machine>(pairs.score, [&]<Known known>() FLASHOMP_LAMBDA {
                using Probability = KeyProbability<modified, masked, Machine, known>;
                tile.map(pr, Probability{{pairs.score}, stats.lse[stage], stats.residual[stage], pairs.i0, pairs.j0});
            });
        });
        tile.sync();
        tile.accumulate(dv, pr, dout[stage]);
    };
    for_queries(tile, p, work, keys, q, dout, stats, multiply, attend);
    store_key_sums(tile, dv, p, work, keys, p.dv, p.partial_dv, p.head_dim_v, 1.0F);
    tile.sync();
}

/// What a pass over key blocks computes: dK and dV, or, on a machine that has no room for two accumulators, one of them
/// at a time.
enum class KeySums { both, keys, values };

template <bool modified, KeySums sums = KeySums::both, class Machine>
FLASHOMP_INLINE void backward_key_block(Machine& tile, const Params& p, const WorkItem& work)
{
    const Sequence seq = sequence(p, work.batch);
    if (work.block * tile.resident_rows() >= seq.k_len) {
        return;
    }
    KeyBlock keys(seq, work, tile.resident_rows()); // not const: g++ would not keep it in registers
    if constexpr (sums == KeySums::both) {
        backward_keys_and_values<modified>(tile, p, work, keys);
    } else if constexpr (sums == KeySums::keys) {
        backward_keys<modified>(tile, p, work, keys);
    } else {
        backward_values<modified>(tile, p, work, keys);
    }
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
