// Gradients of the optional inputs: dbias, reduced to the bias's broadcast shape, and dsink. Like dK and dV they are
// sums in a fixed order, not atomics.
#pragma once

#include "algorithm/backward.hpp"
#include "algorithm/finite_check.hpp"

#pragma omp declare target

namespace flashomp::offload {

/// The axes over which dbias sums: those that the bias broadcasts along.
struct BiasBlocks {
    bool over_batch, over_head, over_query, over_key;
    int batches, heads, query_blocks, key_blocks; ///< units of work along each axis

    FLASHOMP_INLINE BiasBlocks(const Params& p, int block_m, int block_n)
        : over_batch(p.dbias.batch == 0), over_head(p.dbias.head == 0), over_query(p.dbias.query == 0),
          over_key(p.dbias.key == 0), batches(over_batch ? 1 : p.batch), heads(over_head ? 1 : p.heads_q),
          query_blocks(over_query ? 1 : (p.seqlen_q + block_m - 1) / block_m),
          key_blocks(over_key ? 1 : (p.seqlen_k + block_n - 1) / block_n)
    {
    }

    FLASHOMP_INLINE std::int64_t items() const { return std::int64_t{batches} * heads * query_blocks * key_blocks; }
};

/// dbias of one block of the bias: Σ dS over everything that reads the block, in the order batch, head, query block,
/// key block.
template <SummingMachine Machine>
FLASHOMP_INLINE void backward_bias_block(Machine& tile, const Params& p, std::int64_t index)
{
    using Stage = typename Machine::Stage;
    const int block_m = tile.resident_rows();
    const int block_n = tile.stream_rows();
    const BiasBlocks blocks(p, block_m, block_n);
    const int key_block = static_cast<int>(index % blocks.key_blocks);
    const int query_block = static_cast<int>(index / blocks.key_blocks % blocks.query_blocks);
    const int bias_head = static_cast<int>(index / blocks.key_blocks / blocks.query_blocks % blocks.heads);
    const int bias_batch = static_cast<int>(index / blocks.key_blocks / blocks.query_blocks / blocks.heads);

    auto q = tile.resident(p.head_dim);
    auto dout = tile.resident(p.head_dim_v);
    auto k = tile.stream(p.k, p.head_dim, StreamUse::scores);
    auto v = tile.stream(p.v, p.head_dim_v, StreamUse::scores);
    auto s = tile.scores();
    auto ds = tile.scores();
    auto total = tile.scores();
    auto lse = tile.row_stats();
    auto delta = tile.row_stats();
    auto residual = tile.row_stats();
    tile.clear(total);

    const int last_batch = blocks.over_batch ? p.batch : bias_batch + 1;
    const int last_head = blocks.over_head ? p.heads_q : bias_head + 1;
    for (int batch = bias_batch; batch < last_batch; ++batch) {
        const Sequence seq = sequence(p, batch);
        const int first_row = blocks.over_query ? 0 : query_block * block_m;
        const int last_row = blocks.over_query || first_row + block_m > seq.q_len ? seq.q_len : first_row + block_m;
        for (int head = bias_head; head < last_head; ++head) {
            const ScoreOn<Machine> score(p, seq, batch, head);
            const ScoreGradient<true, true, Machine> gradient{score};
            const int head_kv = head / (p.heads_q / p.heads_kv);
            for (int i0 = first_row; i0 < last_row; i0 += block_m) {
                const int rows = seq.q_len - i0 < block_m ? seq.q_len - i0 : block_m;
                const TileRow tiles(score.mask, i0 / block_m);
                const Range reached = score.band.keys(i0, i0 + rows);
                const int first_key = blocks.over_key ? reached.begin / block_n * block_n : key_block * block_n;
                const int last_key =
                    blocks.over_key || first_key + block_n > reached.end ? reached.end : first_key + block_n;
                if (last_key <= first_key || first_key + block_n <= reached.begin) {
                    continue;
                }
                const std::int64_t first = seq.q_start + i0;
                tile.load(q, rows_of(p, p.q, batch, head, first, rows, p.head_dim));
                tile.load(dout, rows_of(p, p.dout, batch, head, first, rows, p.head_dim_v));
                const float* saved_lse = row_stats(p.lse, batch, head, first);
                const float* saved_delta = row_stats(p.delta, batch, head, first);
                const float* saved_residual = row_stats(p.residual, batch, head, first);
                tile.for_rows([=](int r) FLASHOMP_LAMBDA {
                    lse[r] = r < rows ? usable_lse(saved_lse[r]) : infinity;
                    delta[r] = r < rows ? saved_delta[r] : 0.0F;
                    residual[r] = r < rows ? saved_residual[r] : 0.0F;
                });
                const auto load_keys = [&](int j0, Stage stage, Load what) FLASHOMP_LAMBDA {
                    if (what == Load::for_sums) {
                        return;
                    }
                    const int columns = seq.k_len - j0 < block_n ? seq.k_len - j0 : block_n;
                    tile.load(k[stage], StridedKeys::keys(p, seq, batch, head_kv, j0, columns));
                    tile.load(v[stage], StridedKeys::values(p, seq, batch, head_kv, j0, columns));
                };
                const auto multiply = [&](int, Stage stage)
                                          FLASHOMP_LAMBDA { tile.multiply(s, q, k[stage], ds, dout, v[stage]); };
                const auto add = [&](int j0, Stage) FLASHOMP_LAMBDA {
                    tile.finish(s, ds);
                    tile.combine(ds, s, [=](float dp, float& dot, int r, int c) FLASHOMP_LAMBDA {
                        if (LeavesOutHidden<Machine> ? !gradient.score.sees(i0 + r, j0 + c)
                                                     : !gradient.score.keeps(i0 + r, j0 + c)) {
                            return 0.0F; // also where dp is NaN
                        }
                        const float prob = gradient.probability(dot, lse[r], residual[r], i0 + r, j0 + c);
                        return gradient.logit(prob, dp, delta[r], gradient.dropout(i0 + r, j0 + c));
                    });
                    tile.add(total, ds);
                };
                for_kept_blocks(tile, tiles, {first_key, last_key}, block_n, load_keys, multiply, add);
            }
        }
    }

    tile.sync();
    const int i0 = query_block * block_m;
    const int j0 = key_block * block_n;
    const int rows = p.seqlen_q - i0 < block_m ? p.seqlen_q - i0 : block_m;
    const int columns = p.seqlen_k - j0 < block_n ? p.seqlen_k - j0 : block_n;
    const BiasTensor target = p.dbias;
    const std::int64_t base = bias_batch * target.batch + bias_head * target.head + i0 * target.query + j0 * target.key;
    // A block that a sum runs over holds it spread over the tile: rows (or columns) of zeros where nothing was added.
    const int sum_rows = blocks.over_query ? block_m : 1;
    const int sum_columns = blocks.over_key ? block_n : 1;
    tile.for_elements(blocks.over_query ? 1 : rows, blocks.over_key ? 1 : columns, [=](int r, int c) FLASHOMP_LAMBDA {
        float sum = 0.0F;
        for (int i = 0; i < sum_rows; ++i) {
            float row = 0.0F; // rows apart: a single running sum of a whole tile would round once for each element
            for (int j = 0; j < sum_columns; ++j) {
                row += total.at(r + i, c + j);
            }
            sum += row;
        }
        write_element(target.data, target.element, base + r * target.query + c * target.key, sum);
    });
    tile.sync();
}

/// dsink of one query head: -Σ p_sink·D over all its rows.
template <class Machine>
FLASHOMP_INLINE void backward_sink_block(Machine& tile, const Params& p, std::int64_t index)
{
    const int head = static_cast<int>(index);
    const int lanes = tile.resident_rows();
    auto sum = tile.row_stats();
    const float sink = p.sink.data[head];
    tile.for_rows([=](int r) FLASHOMP_LAMBDA { sum[r] = 0.0F; });
    for (int batch = 0; batch < p.batch; ++batch) {
        const Sequence seq = sequence(p, batch);
        const ScoreOn<Machine> score(p, seq, batch, head);
        const float* saved_lse = row_stats(p.lse, batch, head, seq.q_start);
        const float* saved_delta = row_stats(p.delta, batch, head, seq.q_start);
        const float* saved_residual = row_stats(p.residual, batch, head, seq.q_start);
        tile.for_rows([=, &score](int r) FLASHOMP_LAMBDA {
            float part = 0.0F;
            for (int i = r; i < seq.q_len; i += lanes) {
                float delta = saved_delta[i];
                // A row without keys has D = 0, whatever dO holds: its D came from 0·dO.
                delta = is_finite(delta) || score.sees_any(i) ? delta : 0.0F;
                part -= exp2_fast((sink - usable_lse(saved_lse[i])) * log2_e - saved_residual[i]) * delta;
            }
            sum[r] += part;
        });
    }
    tile.sync();
    float* target = p.dsink;
    tile.for_rows(1, [=](int) FLASHOMP_LAMBDA {
        float total = 0.0F;
        for (int r = 0; r < lanes; ++r) {
            total += sum[r];
        }
        target[head] = total;
    });
    tile.sync();
}

/// Floats of crew memory that backward_bias_block reserves.
template <class Machine>
constexpr std::int64_t backward_bias_floats(int block_m, int block_n, int head_dim, int head_dim_v)
{
    return Machine::resident_floats(block_m, head_dim) + Machine::resident_floats(block_m, head_dim_v) +
           Machine::stream_floats(block_n, head_dim) + Machine::stream_floats(block_n, head_dim_v) +
           3 * Machine::scores_floats(block_m, block_n) + 3 * Machine::stats_floats(block_m);
}

} // namespace flashomp::offload

#pragma omp end declare target
