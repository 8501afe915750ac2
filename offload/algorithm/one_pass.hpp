// The backward pass that computes all gradients at once: 5 products instead of 7. Key blocks stay in place for dK and
// dV, and what they add to dQ goes to memory, key block after key block: a crew waits until the one before has passed
// the same queries.
//
// Nothing knows whole rows before dQ is done, so nothing repairs LSE and D (row_repair.hpp): on the host this is for
// float32 with LSE whose rounding is no more than that of the scores, on Hopper for 16 bits where rows see many keys.
#pragma once

#include "algorithm/backward.hpp"
#include "algorithm/turns.hpp"

#pragma omp declare target

namespace flashomp::offload {

/// The queries of one item of a pass over query blocks.
struct QueryBlock {
    Sequence seq;
    int i0, rows;       ///< rows <= 0: it is behind the sequence's end
    std::int64_t first; ///< row of the tensors

    FLASHOMP_INLINE QueryBlock(const Params& p, const WorkItem& work, int block_m)
        : seq(sequence(p, work.batch)), i0(work.block * block_m),
          rows(seq.q_len - i0 < block_m ? seq.q_len - i0 : block_m), first(seq.q_start + i0)
    {
    }
};

/// Beforehand: D of one query block. Where the machine adds to dQ itself, dQ and the residual at zero; else LSE to base
/// 2 in the residual's place, +inf for rows without keys.
template <class Machine>
FLASHOMP_INLINE void backward_start_block(Machine& tile, const Params& p, const WorkItem& work)
{
    const QueryBlock queries(p, work, tile.resident_rows());
    const int rows = queries.rows;
    if (rows <= 0) {
        return;
    }
    const std::int64_t first = queries.first;
    auto delta = tile.row_stats();
    if constexpr (OnePassMachine<Machine>) {
        auto zero = tile.accumulator(p.head_dim);
        tile.store(zero, written_rows(p, p.dq, work.batch, work.head, first, rows, p.head_dim),
                   [](int) { return 1.0F; });
    }
    tile.row_dot(written_rows(p, p.o, work.batch, work.head, first, rows, p.head_dim_v),
                 rows_of(p, p.dout, work.batch, work.head, first, rows, p.head_dim_v), delta);
    float* saved_delta = row_stats(p.delta, work.batch, work.head, first);
    float* saved_residual = row_stats(p.residual, work.batch, work.head, first);
    const float* const lse = row_stats(p.lse, work.batch, work.head, first);
    tile.for_rows(rows, [=](typename Machine::Row r) FLASHOMP_LAMBDA {
        saved_delta[r] = delta[r];
        saved_residual[r] = OnePassMachine<Machine> ? 0.0F : usable_lse(lse[r]) * log2_e;
    });
}

/// Adds to the dQ of a tile's queries after all key blocks before this one that any of them see, so that the order of
/// the sum does not depend on the crews. They have their items in that order, so whoever is waited for is at work.
template <class Machine>
void add_by_turns(Machine& tile, const typename Machine::StreamedSums& dq, const Params& p, const WorkItem& work,
                  const KeyBlock& keys, const PairsOn<Machine>& pairs)
{
    const Sequence& seq = keys.seq;
    const int block_m = tile.stream_rows();
    const int block_n = tile.resident_rows();
    const int rows = seq.q_len - pairs.i0 < block_m ? seq.q_len - pairs.i0 : block_m;
    const Range seen = pairs.score.band.keys(pairs.i0, pairs.i0 + rows);
    if (keys.j0 >= seen.end || keys.j0 + block_n <= seen.begin) {
        return; // none of them sees it
    }
    const int head = static_cast<int>(pairs.score.head) - p.first_head;
    const std::int64_t block = query_block(p, work.batch, head, pairs.i0, block_m);
    int before = work.block - 1; // the last key block before this one that has something for the queries
    if (const PairMask& mask = pairs.score.mask; mask.tiles != nullptr) {
        while (before >= seen.begin / block_n && TileRow(mask, before).is_hidden(pairs.i0 / block_m)) {
            --before;
        }
    }
    if (before >= seen.begin / block_n) {
        tile.await_turn(block, static_cast<unsigned>(before) + 1);
    }
    tile.add_rows(written_rows(p, p.dq, work.batch, head, seq.q_start + pairs.i0, rows, p.head_dim), dq, p.scale);
    tile.pass_turn(block, static_cast<unsigned>(work.block) + 1);
}

/// -inf for pairs that the mask hides.
template <class AnyScore>
struct HiddenDots {
    const AnyScore& score;
    int i0, j0; ///< rows are keys

    template <class Row>
    FLASHOMP_INLINE float operator()(float dot, Row r, int c) const
    {
        return score.band.keeps(i0 + c, j0 + r) ? dot : -infinity;
    }
};

/// P and dS of one tile, each as soon as its product is there, and P's part of dV.
template <class Machine>
FLASHOMP_INLINE void late_key_gradients(Machine& tile, typename Machine::Scores& pr, typename Machine::Scores& ds,
                                        typename Machine::Accumulator& dv, const typename Machine::StreamBlock& dout,
                                        const Params& p, const PairsOn<Machine>& pairs, QueryStats<Machine>& stats,
                                        typename Machine::Stage stage)
{
    tile.finish(pr);
    with_mask<false, true>(tile, pr, pairs, [&]<bool masked>() FLASHOMP_LAMBDA {
        if constexpr (masked) {
            tile.map(pr, HiddenDots<ScoreOn<Machine>>{pairs.score, pairs.i0, pairs.j0});
        }
    });
    tile.column_exponentials(pr, p.scale * log2_e, stats.residual[stage]);
    tile.accumulate(dv, pr, dout);
    tile.finish(ds);
    tile.column_gradients(ds, pr, stats.delta[stage]);
}

/// dK and dV of one key block, and its part of dQ.
template <bool modified, class Machine>
FLASHOMP_INLINE void backward_once_block(Machine& tile, const Params& p, const WorkItem& work)
{
    using Stage = typename Machine::Stage;
    const Sequence seq = sequence(p, work.batch);
    if (work.block * tile.resident_rows() >= seq.k_len) {
        return;
    }
    KeyBlock keys(seq, work, tile.resident_rows()); // not const: g++ would not keep it in registers
    auto k = tile.resident(p.head_dim, ResidentUse::both);
    auto v = tile.resident(p.head_dim_v);
    auto q = tile.stream(p.q, p.head_dim, StreamUse::both);
    auto dout = tile.stream(p.dout, p.head_dim_v, StreamUse::both);
    auto pr = tile.scores(modified ? ScoreUse::values : ScoreUse::exponents);
    auto ds = tile.scores();
    auto dk = tile.accumulator(p.head_dim);
    auto dv = tile.accumulator(p.head_dim_v);
    auto dq = tile.streamed_sums(p.head_dim);
    QueryStats<Machine> stats(tile);

    tile.load(k, StridedKeys::keys(p, keys.seq, work.batch, work.head, keys.j0, keys.rows));
    tile.load(v, StridedKeys::values(p, keys.seq, work.batch, work.head, keys.j0, keys.rows));
    if constexpr (!SendingMachine<Machine>) {
        if (p.key_padding_mask != nullptr) { // else what a hidden key holds would reach all of dQ
            const std::uint8_t* const seen = p.key_padding_mask + work.batch * p.key_padding_batch_stride + keys.j0;
            const auto is_hidden = [=, rows = keys.rows](int r) FLASHOMP_LAMBDA { return r < rows && seen[r] == 0; };
            tile.clear_rows(k, is_hidden);
            tile.clear_rows(v, is_hidden);
        }
    }
    const auto multiply = [&](Stage stage) FLASHOMP_LAMBDA { tile.multiply(pr, k, q[stage], ds, v, dout[stage]); };
    const auto attend = [&](const PairsOn<Machine>& pairs, Stage stage) FLASHOMP_LAMBDA {
        if constexpr (SendingMachine<Machine>) {
            late_key_gradients(tile, pr, ds, dv, dout[stage], p, pairs, stats, stage);
        } else {
            key_gradients<modified>(tile, pr, ds, pairs, stats, stage);
            tile.accumulate(dv, pr, dout[stage]);
        }
        tile.project(dq, ds, k);
        if constexpr (SendingMachine<Machine>) {
            tile.ask_turn(); // here few registers are in use, as dS is in team memory
            tile.accumulate_projected(dk, q[stage]);
            tile.hand_over(dq);
            tile.begin_scores(pr, k, q);
            tile.send();
        } else {
            tile.accumulate(dk, ds, q[stage]);
            add_by_turns(tile, dq, p, work, keys, pairs);
        }
    };
    const auto begin_first = [&](int head) FLASHOMP_LAMBDA {
        if constexpr (SendingMachine<Machine>) {
            if (tile.is_sender()) {
                tile.begin_turns(
                    p.sums, p.turns,
                    turns_of(p, work, band_of(p, keys.seq), head, tile.stream_rows(), tile.resident_rows()));
            }
            tile.begin_scores(pr, k, q);
        }
    };
    for_queries(tile, p, work, keys, q, dout, stats, begin_first, multiply, attend);
    const float scale = p.scale;
    store_key_sums(tile, dk, p, work, keys, p.dk, p.partial_dk, p.head_dim, scale);
    store_key_sums(tile, dv, p, work, keys, p.dv, p.partial_dv, p.head_dim_v, 1.0F);
    if constexpr (SendingMachine<Machine>) {
        tile.end_turns();
    }
    tile.sync();
}

/// dQ of one query block, from the sums of a machine that sends.
template <class Machine>
FLASHOMP_INLINE void backward_end_block(Machine& tile, const Params& p, const WorkItem& work)
{
    const int block_m = tile.resident_rows();
    const QueryBlock queries(p, work, block_m);
    if (queries.rows <= 0) {
        return;
    }
    const int i0 = queries.i0, sent_rows = tile.stream_rows(), before = i0 % sent_rows;
    const Range adding = seen_key_blocks(band_of(p, queries.seq), i0 - before, sent_rows, 1);
    const bool has_any = adding.begin < adding.end; // else nobody has written there
    const float scale = has_any ? p.scale : 0.0F;
    tile.store_sums(p.sums, (query_block(p, work.batch, work.head, i0, sent_rows) * sent_rows + before) / block_m,
                    has_any, results_of(p, p.dq, work.batch, work.head, queries.first, queries.rows, p.head_dim),
                    scale);
}

} // namespace flashomp::offload

#pragma omp end declare target
