// A validated attention problem: what the layers below validate() work on. Nothing here needs checking again.
#pragma once

#include "flashomp/attention.hpp"

#include <cstdint>
#include <vector>

namespace flashomp {

struct Problem {
    std::int64_t batch = 0; ///< sequences
    std::int64_t heads_q = 0;
    std::int64_t heads_kv = 0;   ///< divides heads_q
    std::int64_t seqlen_q = 0;   ///< Nq; with packed sequences, the longest
    std::int64_t seqlen_k = 0;   ///< Nk; with packed sequences, the longest
    std::int64_t head_dim = 0;   ///< 1..most_head_dim
    std::int64_t head_dim_v = 0; ///< 1..most_head_dim_v
    DType dtype = DType::float32;

    /// As the caller gave them, but for what layers below change on the way: machine and tiling from a tuning table, no
    /// causal mask where one query sees every key, and no window where one query's keys are those that are here.
    Options options;

    // Inputs. Absent ones have rank 0. Axes as documented in attention.hpp; strides are the caller's.
    ConstTensorView q, k, v;

    /// Copies of cu_seqlens for the planner; empty when not packed.
    std::vector<std::int32_t> starts_q, starts_k;

    // Outputs of forward; inputs of backward.
    TensorView o, lse;

    // Backward only.
    ConstTensorView dout;
    TensorView dq, dk, dv, dbias, dsink;
    bool is_backward = false;

    bool has_large_lse = false; ///< backward in float32: some |LSE| is so large that its rounding shows
    bool is_tuned = false;      ///< options have their machine and tiling from a tuning table instead

    // One query a head (plan/groups.hpp).
    bool rows_are_heads = false;   ///< rows are the query heads that share a key head, seqlen_q their number
    std::int64_t newest_keys = 0;  ///< of each sequence in a cache only so many keys count, the last ones; 0: all
    std::int64_t skipped_keys = 0; ///< in the caller's k and v, before those that are here

    /// The larger head dim, rounded up to one that GPU kernels are compiled for: 64, 128, 256 or most_head_dim.
    [[nodiscard]] int kernel_depth() const;

    /// Whether k and v are a key/value cache of 8 bits, beside a q of more.
    [[nodiscard]] bool is_quantised() const
    {
        return k.dtype == DType::int8 || (k.dtype == DType::float8_e4m3 && dtype != k.dtype);
    }

    /// Rows of the whole sequences that q, and k and v, are shards of; their own where they are not. Not for packed
    /// ones.
    [[nodiscard]] std::int64_t whole_q() const { return options.positions_q ? options.positions_q.whole : seqlen_q; }
    [[nodiscard]] std::int64_t whole_k() const { return options.positions_k ? options.positions_k.whole : seqlen_k; }

    /// Whether rows have keys that are not here: backward then takes LSE and D as they are given.
    [[nodiscard]] bool keys_are_part() const { return options.positions_k && seqlen_k < options.positions_k.whole; }

    /// Keys of a sequence that its rows may see: of a cache, at most.
    [[nodiscard]] std::int64_t seen_keys() const
    {
        return newest_keys > 0 && newest_keys < seqlen_k ? newest_keys : seqlen_k;
    }

    /// What multiplies q·k: options.scale, or its default.
    [[nodiscard]] double scale() const;

    /// Takes the addresses of another problem's tensors, but for cu_seqlens, the seed and offset of its dropout and the
    /// object of its score_mod: what may differ between two runs of a prepared call.
    void take_addresses(const Problem& other);
};

/// Moves the first element of a tensor [batch, row, head, depth] so many rows further.
void skip_rows(ConstTensorView& view, std::int64_t rows);

/// A tensor that is only read, as the view of a result: what is an output of forward is an input of backward.
[[nodiscard]] TensorView as_result(const ConstTensorView& view);

} // namespace flashomp
