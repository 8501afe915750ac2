// What a backward pass that computes all gradients at once (backward.hpp, KeySums::all) needs besides: D beforehand,
// and sums of dQ whose order does not depend on the crews.
#pragma once

#include "algorithm/mask.hpp"

#pragma omp declare target

namespace flashomp::offload {

/// D of one query block, and dQ and the residual at zero, for a pass that computes all gradients at once.
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
    tile.store(zero, rows_of(p, p.dq, work.batch, work.head, first, rows, p.head_dim), [](int) { return 1.0F; });
    tile.row_dot(rows_of(p, p.o, work.batch, work.head, first, rows, p.head_dim_v),
                 rows_of(p, p.dout, work.batch, work.head, first, rows, p.head_dim_v), delta);
    float* saved_delta = row_stats(p.delta, work.batch, work.head, first);
    float* saved_residual = row_stats(p.residual, work.batch, work.head, first);
    tile.for_rows(rows, [=](int r) {
        saved_delta[r] = delta[r];
        saved_residual[r] = 0.0F;
    });
}

/// A block of queries and the key block that adds to its dQ.
struct QueryTurn {
    int batch, head, i0, key_block;
};

/// Adds to a block of dQ after all key blocks before this one that any of its queries see, so that the order of the
/// sum does not depend on the crews. They have their items in that order, so whoever is waited for is at work.
template <class Machine>
void add_by_turns(Machine& tile, const typename Machine::StreamedSums& dq, const Params& p, const QueryTurn& turn,
                  const Sequence& seq, const Band& band)
{
    const int block_m = tile.stream_rows();
    const int block_n = tile.resident_rows();
    const int rows = seq.q_len - turn.i0 < block_m ? seq.q_len - turn.i0 : block_m;
    const Range keys = band.keys(turn.i0, turn.i0 + rows);
    const int j0 = turn.key_block * block_n;
    if (j0 >= keys.end || j0 + block_n <= keys.begin) {
        return; // none of them sees it
    }
    const std::int64_t blocks = (p.seqlen_q + block_m - 1) / block_m;
    const std::int64_t block = (turn.batch * std::int64_t{p.heads_q} + turn.head) * blocks + turn.i0 / block_m;
    if (turn.key_block > keys.begin / block_n) {
        tile.await_turn(block, static_cast<unsigned>(turn.key_block));
    }
    tile.add_rows(rows_of(p, p.dq, turn.batch, turn.head, seq.q_start + turn.i0, rows, p.head_dim), dq, p.scale);
    tile.pass_turn(block, static_cast<unsigned>(turn.key_block) + 1);
}

} // namespace flashomp::offload

#pragma omp end declare target
