// The forward pass, once for every machine (FlashAttention-2, Algorithm 1): one query block stays, key blocks
// stream past it, O and LSE are written once.
#pragma once

#include "algorithm/key_source.hpp"
#include "algorithm/machine.hpp"
#include "algorithm/masked_tile.hpp"
#include "algorithm/order.hpp"
#include "algorithm/score.hpp"
#include "algorithm/softmax.hpp"

#pragma omp declare target

namespace flashomp::offload {

/// One unit of work of a pass: a resident block of one head of one sequence, and a part of the keys.
struct WorkItem {
    int batch = 0, head = 0, block = 0, split = 0;
    KeyOrder order = KeyOrder::ascending; ///< of a pass that adds to dQ by turns
};

/// The part of `keys` that belongs to a split, in whole blocks of `block_n` that begin at multiples of it plus offset.
FLASHOMP_INLINE Range split_keys(Range keys, int block_n, int split, int splits, int offset = 0)
{
    const int first = keys.begin / block_n;
    const int blocks = (keys.end - offset + block_n - 1) / block_n - first;
    if (keys.end <= keys.begin) {
        return {0, 0};
    }
    const int each = (blocks + splits - 1) / splits;
    const int begin = (first + split * each) * block_n + offset;
    const int end = begin + each * block_n;
    return {begin, end < keys.end ? end : keys.end};
}

/// Whether a machine's blocks of keys leave out padding at both ends, which then costs nothing and may hold anything.
/// On a GPU each lane would look for the ends one key after the other.
template <class Machine>
concept LeavesOutPadding = requires
{
    Machine::leaves_out_padding;
};

/// Whether a machine's sums leave out hidden pairs, instead of multiplying by the 0 that they have for a probability
/// (nonfinite.hpp).
template <class Machine>
concept LeavesOutHidden = requires
{
    Machine::leaves_out_hidden;
};

/// Whether for_blocks() has a load of the resident block itself, at the time that is best for it.
template <class Machine>
concept LoadsLate = requires
{
    requires Machine::loads_late != 0;
};

/// The keys that queries [i0, i1) of a sequence see, in tiles that begin at multiples of block_n; where padding is left
/// out, at the first key after it and every block_n keys from there.
template <class Machine>
FLASHOMP_INLINE Range key_tiles(const ScoreOn<Machine>& score, int i0, int i1, int block_n, int split = 0,
                                int splits = 1)
{
    if constexpr (LeavesOutPadding<Machine>) {
        const Range seen = score.unpadded_keys(i0, i1);
        const bool begins_anywhere =
            score.key_padding != nullptr && !has_mask(score.mask); // else as the table of tiles
        return split_keys(seen, block_n, split, splits, begins_anywhere ? seen.begin % block_n : 0);
    } else {
        return split_keys(score.band.keys(i0, i1), block_n, split, splits);
    }
}

/// Keys of a sequence that may be loaded for queries [i0, i1): those beyond read as zeros.
template <class Machine>
FLASHOMP_INLINE int loaded_keys(const ScoreOn<Machine>& score, const Sequence& seq, int i0, int i1)
{
    if constexpr (LeavesOutPadding<Machine>) {
        return score.unpadded_keys(i0, i1).end;
    } else {
        return seq.k_len;
    }
}

/// o and LSE of one query block; with splits, of the part of the keys that is the item's.
template <bool modified, KeySource Keys = StridedKeys, class Machine>
FLASHOMP_INLINE void forward_block(Machine& tile, const Params& p, const WorkItem& work)
{
    const Sequence seq = Keys::of(p, work.batch);
    const int block_m = tile.resident_rows();
    const int block_n = tile.stream_rows();
    const int i0 = work.block * block_m;
    if (i0 >= seq.q_len) {
        return;
    }
    const int rows = seq.q_len - i0 < block_m ? seq.q_len - i0 : block_m;
    const int head_kv = work.head / (p.heads_q / p.heads_kv);
    using ScoreHere = ScoreOn<Machine>;
    const ScoreHere score(p, seq, work.batch, work.head);
    const TileRow tiles(score.mask, work.block);

    auto q = tile.resident(p.head_dim);
    auto k = tile.stream(p.k, p.head_dim, StreamUse::scores);
    auto v = tile.stream(p.v, p.head_dim_v, StreamUse::sums);
    auto s = tile.scores(modified ? ScoreUse::values : ScoreUse::exponents);
    auto o = tile.accumulator(p.head_dim_v);
    OnlineSoftmax<Machine> softmax(tile, modified ? 1.0F : p.scale);

    const auto load_q = [&]() FLASHOMP_LAMBDA {
        tile.load(q, rows_of(p, p.q, work.batch, work.head, seq.q_start + i0, rows, p.head_dim));
    };
    if constexpr (!LoadsLate<Machine>) {
        load_q();
    }

    using Row = typename Machine::Row;
    using Stage = typename Machine::Stage;
    const int last = loaded_keys<Machine>(score, seq, i0, i0 + rows);
    const auto all_k = Keys::keys(p, seq, work.batch, head_kv, 0, last);
    const auto all_v = Keys::values(p, seq, work.batch, head_kv, 0, last);
    const auto load = [&](int j0, Stage stage, Load what) FLASHOMP_LAMBDA {
        if (what == Load::for_scores) {
            tile.load(k[stage], slice(all_k, j0, block_n));
        } else {
            tile.load(v[stage], slice(all_v, j0, block_n));
        }
    };
    const auto multiply = [&](int, Stage stage) FLASHOMP_LAMBDA { tile.multiply(s, q, k[stage]); };
    const Range interior = score.interior_keys(i0, i0 + block_m);
    const auto attend = [&](int j0, Stage stage) FLASHOMP_LAMBDA {
        tile.finish(s);
        tile.sync();
        const bool is_whole = !TakesMasks<Machine> || tiles.is_whole(j0 / block_n);
        if (is_whole && contains(interior, j0, block_n)) {
            if constexpr (modified) {
                with_known<true, false, Machine>(score, [&]<Known known>() FLASHOMP_LAMBDA {
                    tile.map(s, Logit<true, false, ScoreHere, known>{score, i0, j0});
                });
            }
        } else {
            if (!modified && score.key_padding != nullptr) {
                tile.map(s, PaddedKeys<false, ScoreHere>{score, j0});
            }
            if constexpr (!modified && TakesMasks<Machine>) {
                if (!is_whole) {
                    hide_masked<false>(tile, s, score, i0, j0);
                }
            }
            with_known<modified, true, Machine>(score, [&]<Known known>() FLASHOMP_LAMBDA {
                tile.map(s, Logit<modified, true, ScoreHere, known>{score, i0, j0});
            });
        }
        if constexpr (LeavesOutHidden<Machine>) { // a bias of -inf beside a NaN has not hidden it
            tile.sync();
            tile.map(s, HiddenLogit<ScoreHere>{{score, i0, j0}});
        }
        const bool moved = softmax.update(tile, s);
        if constexpr (modified) {
            if (score.dropout_threshold != 0) { // after the sum: dropout leaves the denominator alone
                drop(tile, s, score, i0, j0);
            }
        }
        if constexpr (LeavesOutHidden<Machine>) {
            tile.keep(s, VisiblePairs<false, ScoreHere>{score, i0, j0});
        }
        tile.sync();
        tile.accumulate(o, s, v[stage], moved, softmax.correction);
    };
    const Range kept = key_tiles<Machine>(score, i0, i0 + rows, block_n, work.split, p.splits);
    if constexpr (LoadsLate<Machine>) {
        tile.for_blocks(kept, block_n, load_q, load, multiply, attend);
    } else {
        for_kept_blocks(tile, tiles, kept, block_n, load, multiply, attend);
    }

    const std::int64_t first = seq.q_start + i0;
    Rows target = results_of(p, p.o, work.batch, work.head, first, rows, p.head_dim_v);
    float* lse = row_stats(p.lse, work.batch, work.head, first);
    if (p.splits > 1) {
        const float* part = row_stats(p.partial_lse, work.batch, work.head, first) + work.split * p.partial_stride;
        const std::int64_t row = part - p.partial_lse.data;
        target = {p.partial_o, row * p.head_dim_v, p.head_dim_v, rows, p.head_dim_v, Element::float32};
        lse = p.partial_lse.data + row;
    }
    const bool has_sinks = p.sink.data != nullptr && work.split == 0;
    const float* const sinks = has_sinks ? p.sink.data + work.head * p.sink.head + i0 * p.sink.row : nullptr;
    softmax.finish(tile, rows, sinks, p.sink.row, lse);
    tile.sync();
    tile.store(o, target, [=](Row r) FLASHOMP_LAMBDA { return softmax.correction[r]; });
    tile.sync();
}

/// Floats of crew memory that forward_block reserves.
template <class Machine>
constexpr std::int64_t forward_floats(int block_m, int block_n, int head_dim, int head_dim_v)
{
    return Machine::resident_floats(block_m, head_dim) + Machine::stream_floats(block_n, head_dim) +
           Machine::stream_floats(block_n, head_dim_v) + Machine::scores_floats(block_m, block_n) +
           Machine::accumulator_floats(block_m, head_dim_v) + 4 * Machine::stats_floats(block_m);
}

} // namespace flashomp::offload

#pragma omp end declare target
