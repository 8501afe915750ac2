// A small float64 problem with random inputs that owns its memory, for the tests of the reference.
#pragma once

#include "problem.hpp"
#include "reference.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

namespace flashomp::testing {

struct ReferenceShape {
    std::int64_t batch = 1, heads_q = 1, heads_kv = 1, seqlen_q = 4, seqlen_k = 4, head_dim = 4, head_dim_v = 4;
};

/// Move-only: `problem` views the vectors, whose memory stays where it is when they move.
struct ReferenceCase {
    std::vector<double> q, k, v, dout, alibi_slopes, bias, sink;
    std::vector<std::uint8_t> key_padding_mask;
    std::mt19937_64 random;
    Problem problem;

    explicit ReferenceCase(const ReferenceShape& s, std::uint64_t seed = 1) : random(seed)
    {
        dimensions(s);
        q = uniform(s.batch * s.seqlen_q * s.heads_q * s.head_dim);
        k = uniform(s.batch * s.seqlen_k * s.heads_kv * s.head_dim);
        v = uniform(s.batch * s.seqlen_k * s.heads_kv * s.head_dim_v);
        dout = uniform(s.batch * s.seqlen_q * s.heads_q * s.head_dim_v);
        problem.q = float64(q, {s.batch, s.seqlen_q, s.heads_q, s.head_dim});
        problem.k = float64(k, {s.batch, s.seqlen_k, s.heads_kv, s.head_dim});
        problem.v = float64(v, {s.batch, s.seqlen_k, s.heads_kv, s.head_dim_v});
        problem.dout = float64(dout, {s.batch, s.seqlen_q, s.heads_q, s.head_dim_v});
    }

    /// Packed sequences; batch and seqlens of `s` are taken from the lengths. There are no tensors of their boundaries:
    /// those of a call on a GPU may be where the host cannot read them.
    ReferenceCase(ReferenceShape s, const std::vector<std::int32_t>& lengths_q,
                  const std::vector<std::int32_t>& lengths_k, std::uint64_t seed = 1)
        : random(seed)
    {
        std::vector<std::int32_t>& starts_q = problem.starts_q;
        std::vector<std::int32_t>& starts_k = problem.starts_k;
        starts_q = starts_k = {0};
        for (std::size_t b = 0; b < lengths_q.size(); ++b) {
            starts_q.push_back(starts_q.back() + lengths_q[b]);
            starts_k.push_back(starts_k.back() + lengths_k[b]);
        }
        s.batch = static_cast<std::int64_t>(lengths_q.size());
        s.seqlen_q = *std::max_element(lengths_q.begin(), lengths_q.end());
        s.seqlen_k = *std::max_element(lengths_k.begin(), lengths_k.end());
        dimensions(s);
        const std::int64_t total_q = starts_q.back();
        const std::int64_t total_k = starts_k.back();
        q = uniform(total_q * s.heads_q * s.head_dim);
        k = uniform(total_k * s.heads_kv * s.head_dim);
        v = uniform(total_k * s.heads_kv * s.head_dim_v);
        dout = uniform(total_q * s.heads_q * s.head_dim_v);
        problem.q = float64(q, {total_q, s.heads_q, s.head_dim});
        problem.k = float64(k, {total_k, s.heads_kv, s.head_dim});
        problem.v = float64(v, {total_k, s.heads_kv, s.head_dim_v});
        problem.dout = float64(dout, {total_q, s.heads_q, s.head_dim_v});
    }

    ReferenceCase(ReferenceCase&&) = default;
    ReferenceCase& operator=(ReferenceCase&&) = default;
    ReferenceCase(const ReferenceCase&) = delete;
    ReferenceCase& operator=(const ReferenceCase&) = delete;
    ~ReferenceCase() = default;

    void add_alibi(bool per_batch)
    {
        alibi_slopes = uniform(per_batch ? problem.batch * problem.heads_q : problem.heads_q);
        problem.options.alibi_slopes = per_batch ? float64(alibi_slopes, {problem.batch, problem.heads_q})
                                                 : float64(alibi_slopes, {problem.heads_q});
    }

    /// A bias that broadcasts along the axes (batch, head, i, j) that are marked.
    void add_bias(const std::array<bool, 4>& broadcast = {})
    {
        const std::int64_t b = broadcast[0] ? 1 : problem.batch;
        const std::int64_t h = broadcast[1] ? 1 : problem.heads_q;
        const std::int64_t i = broadcast[2] ? 1 : problem.seqlen_q;
        const std::int64_t j = broadcast[3] ? 1 : problem.seqlen_k;
        bias = uniform(b * h * i * j);
        problem.options.bias = float64(bias, {b, h, i, j});
    }

    void add_sink()
    {
        sink = uniform(problem.heads_q);
        problem.options.sink = float64(sink, {problem.heads_q});
    }

    void add_key_padding(double hidden = 0.3)
    {
        for (const double x : uniform(problem.batch * problem.seqlen_k)) {
            key_padding_mask.push_back(0.5 * (x + 1.0) >= hidden ? 1 : 0);
        }
        problem.options.key_padding_mask =
            ConstTensorView::contiguous(key_padding_mask.data(), DType::boolean, {problem.batch, problem.seqlen_k});
    }

    /// Numbers in [-1, 1).
    [[nodiscard]] std::vector<double> uniform(std::int64_t elements)
    {
        std::vector<double> values(static_cast<std::size_t>(elements));
        std::generate(values.begin(), values.end(), [this] { return std::ldexp(double(random() >> 11U), -52) - 1.0; });
        return values;
    }

    [[nodiscard]] static ConstTensorView float64(const std::vector<double>& values,
                                                 std::initializer_list<std::int64_t> shape)
    {
        return ConstTensorView::contiguous(values.data(), DType::float64, shape);
    }

private:
    void dimensions(const ReferenceShape& s)
    {
        problem.batch = s.batch;
        problem.heads_q = s.heads_q;
        problem.heads_kv = s.heads_kv;
        problem.seqlen_q = s.seqlen_q;
        problem.seqlen_k = s.seqlen_k;
        problem.head_dim = s.head_dim;
        problem.head_dim_v = s.head_dim_v;
        problem.dtype = DType::float64;
        problem.is_backward = true;
    }
};

} // namespace flashomp::testing
