// The backward pass that computes all gradients at once: 5 products instead of 7. Key blocks stay in place for dK and
// dV, and what they add to dQ goes to memory, key block after key block: a crew waits until the one before has passed
// the same queries.
//
// Nothing knows whole rows before dQ is done, so nothing repairs LSE and D (row_repair.hpp): this is for float32 with
// LSE whose rounding is no more than that of the scores.
#pragma once

#include "algorithm/backward.hpp"

#pragma omp declare target

namespace flashomp::offload {

/// Beforehand: D of one query block, and dQ and the residual at zero.
template <class Machine>
FLASHOMP_INLINE void backward_start_block(Machine& tile, const Params& p, const WorkItem& work)
{
    const Sequence seq = sequence(p, work.batch);
    const int block_m = tile.resident_rows();
    const int i0 = work.block * block_m;
    if (i0 >= seq.q_len) {
        return;
    }
    const int rows = seq.q_len - i0 < block_m ? seq.q_len - i0 : block_m;
    const std::int64_t first = seq.q_start + i0;
    auto zero = tile.accumulator(p.head_dim);
    auto delta = tile.row_stats();
    tile.store(zero, written_rows(p, p.dq, work.batch, work.head, first, rows, p.head_dim), [](int) { return 1.0F; });
    tile.row_dot(written_rows(p, p.o, work.batch, work.head, first, rows, p.head_dim_v),
                 rows_of(p, p.dout, work.batch, work.head, first, rows, p.head_dim_v), delta);
    float* saved_delta = row_stats(p.delta, work.batch, work.head, first);
    float* saved_residual = row_stats(p.residual, work.batch, work.head, first);
    tile.for_rows(rows, [=](int r) {
        saved_delta[r] = delta[r];
        saved_residual[r] = 0.0F;
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
    const std::int64_t blocks = (p.seqlen_q + block_m - 1) / block_m;
    const std::int64_t block = (work.batch * std::int64_t{p.heads_q} + head) * blocks + pairs.i0 / block_m;
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

/// dK and dV of one key block, and its part of dQ.
template <bool modified, OnePassMachine Machine>
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
    QueryStats<Machine> stats(tile);
    auto dq = tile.streamed_sums(p.head_dim);

    tile.load(k, StridedKeys::keys(p, keys.seq, work.batch, work.head, keys.j0, keys.rows));
    tile.load(v, StridedKeys::values(p, keys.seq, work.batch, work.head, keys.j0, keys.rows));
    if (p.key_padding_mask != nullptr) { // else what a hidden key holds would reach all of dQ
        const std::uint8_t* const seen = p.key_padding_mask + work.batch * p.key_padding_batch_stride + keys.j0;
        const auto is_hidden = [=, rows = keys.rows](int r) FLASHOMP_LAMBDA { return r < rows && seen[r] == 0; };
        tile.clear_rows(k, is_hidden);
        tile.clear_rows(v, is_hidden);
    }
    const auto multiply = [&](Stage stage) FLASHOMP_LAMBDA { tile.multiply(pr, k, q[stage], ds, v, dout[stage]); };
    const auto attend = [&](const PairsOn<Machine>& pairs, Stage stage) FLASHOMP_LAMBDA {
        key_gradients<modified>(tile, pr, ds, pairs, stats, stage);
        tile.accumulate(dv, pr, dout[stage]);
        tile.accumulate(dk, ds, q[stage]);
        tile.project(dq, ds, k);
        add_by_turns(tile, dq, p, work, keys, pairs);
    };
    for_queries(tile, p, work, keys, q, dout, stats, multiply, attend);
    const float scale = p.scale;
    store_key_sums(tile, dk, p, work, keys, p.dk, p.partial_dk, p.head_dim, scale);
    store_key_sums(tile, dv, p, work, keys, p.dv, p.partial_dv, p.head_dim_v, 1.0F);
    tile.sync();
}

} // namespace flashomp::offload

#pragma omp end declare target
