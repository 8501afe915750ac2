// One query head of one sequence: which of its scores are visible, and what is added to them (design: "Semantics").
#pragma once

#include "cache.hpp"
#include "element_as_double.hpp"
#include "flashomp/dropout.hpp"
#include "option_list.hpp"
#include "problem.hpp"

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace flashomp::reference {

/// One entry of the batch. first_q and first_k are its first rows in q and k with batch and seqlen flattened.
struct Sequence {
    std::int64_t batch = 0;
    std::int64_t first_q = 0, first_k = 0;
    std::int64_t length_q = 0, length_k = 0;
};

/// Sequence `b` of a batch, padded or packed. Reads its length in a cache.
[[nodiscard]] inline Sequence sequence_of(const Problem& problem, std::int64_t b)
{
    Sequence sequence{b, b * problem.seqlen_q, b * problem.seqlen_k, problem.seqlen_q, problem.seqlen_k};
    const auto packed = [i = static_cast<std::size_t>(b)](const std::vector<std::int32_t>& starts, std::int64_t& first,
                                                          std::int64_t& length) {
        if (!starts.empty()) {
            first = starts[i];
            length = starts[i + 1] - starts[i];
        }
    };
    packed(problem.starts_q, sequence.first_q, sequence.length_q);
    packed(problem.starts_k, sequence.first_k, sequence.length_k);
    if (is_cache(problem)) {
        sequence.length_k = KeyCache(problem).length(b);
    }
    return sequence;
}

/// Element strides of a bias [1|B, 1|Hq, 1|Nq, 1|Nk], 0 along broadcast axes, so that (b, h, i, j) indexes it directly.
[[nodiscard]] inline std::array<std::int64_t, 4> broadcast_strides(const ConstTensorView& view)
{
    std::array<std::int64_t, 4> strides{};
    for (std::size_t axis = 0; axis < 4; ++axis) {
        strides.at(axis) = view.shape.at(axis) == 1 ? 0 : view.strides.at(axis);
    }
    return strides;
}

/// A query head `index` of one sequence. Rows i and columns j count from the start of the sequence, of a shard from its
/// first row.
struct Head {
    const Problem& problem;
    Sequence sequence;
    std::int64_t index = 0;

    [[nodiscard]] std::int64_t kv_index() const { return index / (problem.heads_q / problem.heads_kv); }

    // Positions in the whole sequence, and its lengths: those of the rows themselves but for shards.
    [[nodiscard]] std::int64_t query(std::int64_t i) const
    {
        return problem.options.positions_q ? problem.options.positions_q[i] : i;
    }
    [[nodiscard]] std::int64_t key(std::int64_t j) const
    {
        return problem.options.positions_k ? problem.options.positions_k[j] : j;
    }
    [[nodiscard]] std::int64_t whole_q() const
    {
        return problem.options.positions_q ? problem.options.positions_q.whole : sequence.length_q;
    }
    [[nodiscard]] std::int64_t whole_k() const
    {
        return problem.options.positions_k ? problem.options.positions_k.whole : sequence.length_k;
    }

    // Numbers in the whole call: those here but for parts.
    [[nodiscard]] std::int64_t whole_batch() const { return problem.options.first_sequence + sequence.batch; }
    [[nodiscard]] std::int64_t whole_head() const { return problem.options.first_head + index; }

    /// i + Δ − j of positions, with Δ = Nk − Nq: how far key j lies behind the diagonal that ends bottom right.
    [[nodiscard]] std::int64_t behind(std::int64_t i, std::int64_t j) const
    {
        return query(i) + whole_k() - whole_q() - key(j);
    }

    /// Whether row i may attend to key j: causal, window and key padding intersect, and a bias of −∞ hides, too.
    [[nodiscard]] bool visible(std::int64_t i, std::int64_t j) const
    {
        const std::int64_t distance = behind(i, j);
        const Window& window = problem.options.window;
        const ConstTensorView& padding = problem.options.key_padding_mask;
        return (problem.options.causal != Causal::top_left || key(j) <= query(i)) &&
               (problem.options.causal != Causal::bottom_right || distance >= 0) &&
               (window.left < 0 || distance <= window.left) && (window.right < 0 || -distance <= window.right) &&
               (!padding ||
                read_element(padding, sequence.batch * padding.strides[0] + j * padding.strides[1]) != 0.0) &&
               (!problem.options.mask || dense_mask(i, j)) &&
               (!problem.options.block_mask || problem.options.block_mask.keeps(sequence.batch, index, i, j)) &&
               (!problem.options.bias || bias(i, j) != -std::numeric_limits<double>::infinity()) && own_mask(i, j);
    }

    /// Of Options::score_mod.
    [[nodiscard]] ScorePair pair(std::int64_t i, std::int64_t j) const
    {
        return {static_cast<int>(whole_batch()), static_cast<int>(whole_head()), static_cast<int>(query(i)),
                static_cast<int>(key(j)),        static_cast<int>(whole_q()),    static_cast<int>(whole_k())};
    }
    [[nodiscard]] bool own_mask(std::int64_t i, std::int64_t j) const
    {
        const ScoreMod& own = problem.options.score_mod;
        return !own || own.functions->keeps == nullptr || own.functions->keeps(own.object.data(), pair(i, j));
    }

    /// Of options.mask.
    [[nodiscard]] bool dense_mask(std::int64_t i, std::int64_t j) const
    {
        const ConstTensorView& mask = problem.options.mask;
        const auto [b, h, row, column] = broadcast_strides(mask);
        const auto* const line = static_cast<const std::uint8_t*>(mask.data) + sequence.batch * b + index * h + i * row;
        return mask.dtype == DType::bits ? ((line[j / 8] >> (j % 8)) & 1) != 0 : line[j * column] != 0;
    }

    /// Of a tensor [heads] or [batch, heads].
    [[nodiscard]] double of_head(const ConstTensorView& view, std::int64_t head) const
    {
        return read_element(view, view.rank == 1 ? head * view.strides[0]
                                                 : sequence.batch * view.strides[0] + head * view.strides[1]);
    }

    [[nodiscard]] double alibi_slope() const { return of_head(problem.options.alibi_slopes, index); }

    /// What ALiBi adds: −slope·|i + Δ − j|.
    [[nodiscard]] double alibi(double slope, std::int64_t i, std::int64_t j) const
    {
        return -slope * std::abs(static_cast<double>(behind(i, j)));
    }

    [[nodiscard]] double bias(std::int64_t i, std::int64_t j) const
    {
        const auto [b, h, row, column] = broadcast_strides(problem.options.bias);
        return read_element(problem.options.bias, sequence.batch * b + index * h + i * row + j * column);
    }

    /// The factor of q, k or v: 1 where there are no scales.
    [[nodiscard]] double scale(const ConstTensorView& scales, std::int64_t head) const
    {
        return scales ? of_head(scales, head) : 1.0;
    }

    [[nodiscard]] double sink() const
    {
        return read_element(problem.options.sink, index * problem.options.sink.strides[0]);
    }

    /// The factor dropout puts on a probability: 0 when dropped, else 1/(1 − p_drop).
    [[nodiscard]] double dropout(PhiloxKey philox, std::int64_t i, std::int64_t j) const
    {
        const double probability = problem.options.dropout.probability;
        const bool keep = dropout_keep(philox, static_cast<std::uint32_t>(whole_batch()),
                                       static_cast<std::uint32_t>(whole_head()), static_cast<std::uint32_t>(query(i)),
                                       static_cast<std::uint32_t>(key(j)), dropout_threshold(probability));
        return keep ? 1.0 / (1.0 - probability) : 0.0;
    }
};

} // namespace flashomp::reference
