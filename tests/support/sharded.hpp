// A problem cut into shards, each call on a shard of its queries and one of its keys, and the results put together:
// what a ring of ranks does, on one machine.
#pragma once

#include "attention_case.hpp"
#include "features.hpp"

#include <algorithm>
#include <cstring>
#include <functional>
#include <vector>

namespace flashomp::testing {

/// Rows of a shard, and where they stand.
struct Shard {
    Positions positions;
    std::vector<std::int64_t> rows;
};

enum class Scheme : std::uint8_t { contiguous, zigzag };

/// Shard `rank` of so many of a sequence: of 2·ranks chunks the rank has one from the front and one from the back, or
/// two that follow one another.
inline Shard shard_of(Scheme scheme, std::int64_t rank, std::int64_t ranks, std::int64_t length)
{
    const bool is_zigzag = scheme == Scheme::zigzag;
    const auto chunk = [&](std::int64_t index) -> Stretch {
        const std::int64_t first = index * length / (2 * ranks);
        return {first, (index + 1) * length / (2 * ranks) - first};
    };
    Shard shard;
    shard.positions.whole = length;
    shard.positions.stretches = {chunk(is_zigzag ? rank : 2 * rank),
                                 chunk(is_zigzag ? 2 * ranks - 1 - rank : 2 * rank + 1)};
    for (std::int64_t row = 0; row < shard.positions.rows(); ++row) {
        shard.rows.push_back(shard.positions[row]);
    }
    return shard;
}

/// Calls f(whole, part, bytes) with the offsets of what the rows have along an axis.
template <class F>
void each_run(const HostTensor& whole, std::size_t axis, const std::vector<std::int64_t>& rows, F f)
{
    const io::Shape& shape = whole.shape();
    auto inner = static_cast<std::int64_t>(size_of(whole.dtype()));
    std::int64_t outer = 1;
    for (std::size_t a = 0; a < shape.size(); ++a) {
        (a < axis ? outer : inner) *= a == axis ? 1 : shape[a];
    }
    const auto count = static_cast<std::int64_t>(rows.size());
    for (std::int64_t o = 0; o < outer; ++o) {
        for (std::int64_t r = 0; r < count; ++r) {
            f((o * shape[axis] + rows[static_cast<std::size_t>(r)]) * inner, (o * count + r) * inner, inner);
        }
    }
}

/// The rows of an axis as a tensor of their own; the whole where the axis broadcasts.
inline HostTensor gathered(const HostTensor& whole, std::size_t axis, const std::vector<std::int64_t>& rows)
{
    io::Shape shape = whole.shape();
    std::vector<std::int64_t> taken = rows;
    if (shape[axis] == 1) {
        taken.assign(1, 0);
    }
    shape[axis] = static_cast<std::int64_t>(taken.size());
    HostTensor part(whole.dtype(), shape);
    each_run(whole, axis, taken, [&](std::int64_t from, std::int64_t to, std::int64_t bytes) {
        std::memcpy(static_cast<char*>(part.data()) + to, static_cast<const char*>(whole.data()) + from,
                    static_cast<std::size_t>(bytes));
    });
    return part;
}

/// Adds float32 rows to those of the whole.
inline void add_rows(HostTensor& whole, std::size_t axis, const std::vector<std::int64_t>& rows, const HostTensor& part)
{
    each_run(whole, axis, rows, [&](std::int64_t to, std::int64_t from, std::int64_t bytes) {
        auto* const sums = reinterpret_cast<float*>(static_cast<char*>(whole.data()) + to);
        const auto* const terms = reinterpret_cast<const float*>(static_cast<const char*>(part.data()) + from);
        std::transform(terms, terms + bytes / 4, sums, sums, [](float term, float sum) { return sum + term; });
    });
}

/// Float32 sums over shards, at zero.
inline HostTensor zeros(const io::Shape& shape)
{
    HostTensor tensor(DType::float32, shape);
    std::memset(tensor.data(), 0, static_cast<std::size_t>(tensor.bytes()));
    return tensor;
}

/// Runs a case in shards and puts the results where run() has them.
class ShardedRun {
public:
    /// `where` puts the machine into options.
    ShardedRun(AttentionCase& whole, Scheme scheme, std::int64_t ranks, std::function<Options(Options)> where)
        : whole_(whole), where_(std::move(where))
    {
        for (std::int64_t rank = 0; rank < ranks; ++rank) {
            queries_.push_back(shard_of(scheme, rank, ranks, whole.shape().seqlen_q));
            keys_.push_back(shard_of(scheme, rank, ranks, whole.shape().seqlen_k));
        }
    }

    void run()
    {
        whole_.poison_outputs();
        io::Shape o_shape = whole_.o.shape();
        HostTensor o = zeros(o_shape), lse = zeros(whole_.lse.shape());
        HostTensor dq = zeros(whole_.q.shape()), dk = zeros(whole_.k.shape()), dv = zeros(whole_.v.shape());
        HostTensor dsink = whole_.sink.rank() > 0 ? zeros(whole_.sink.shape()) : HostTensor();
        HostTensor dbias = whole_.bias.rank() > 0 ? zeros(whole_.bias.shape()) : HostTensor();
        for (const Shard& queries : queries_) {
            const HostTensor q = gathered(whole_.q, 1, queries.rows);
            const HostTensor dout = gathered(whole_.dout, 1, queries.rows);
            io::Shape shape = q.shape();
            shape.back() = whole_.shape().head_dim_v;
            HostTensor sum_o, sum_lse;
            for (const Shard& keys : keys_) {
                const Part part(whole_, queries, keys, &keys == &keys_.front());
                HostTensor part_o(DType::float32, shape, Fill::poison);
                HostTensor part_lse(DType::float32, {shape[0], shape[2], shape[1]}, Fill::poison);
                forward({q.view(), part.k.view(), part.v.view(), part_o.view(), part_lse.view()}, where_(part.options));
                if (&keys == &keys_.front()) {
                    sum_o = std::move(part_o);
                    sum_lse = std::move(part_lse);
                } else {
                    merge({std::as_const(sum_o).view(), std::as_const(sum_lse).view()},
                          {std::as_const(part_o).view(), std::as_const(part_lse).view()}, sum_o.view(), sum_lse.view());
                }
            }
            for (const Shard& keys : keys_) {
                const Part part(whole_, queries, keys, &keys == &keys_.front());
                HostTensor part_dq(DType::float32, q.shape(), Fill::poison);
                HostTensor part_dk(DType::float32, part.k.shape(), Fill::poison);
                HostTensor part_dv(DType::float32, part.v.shape(), Fill::poison);
                HostTensor part_dbias, part_dsink;
                BackwardArgs args;
                args.q = q.view();
                args.k = part.k.view();
                args.v = part.v.view();
                args.o = std::as_const(sum_o).view();
                args.lse = std::as_const(sum_lse).view();
                args.dout = dout.view();
                args.dq = part_dq.view();
                args.dk = part_dk.view();
                args.dv = part_dv.view();
                if (part.bias.rank() > 0) {
                    part_dbias = HostTensor(DType::float32, part.bias.shape(), Fill::poison);
                    args.dbias = part_dbias.view();
                }
                if (part.has_sink) {
                    part_dsink = HostTensor(DType::float32, whole_.sink.shape(), Fill::poison);
                    args.dsink = part_dsink.view();
                }
                backward(args, where_(part.options));
                add_rows(dq, 1, queries.rows, part_dq);
                add_rows(dk, 1, keys.rows, part_dk);
                add_rows(dv, 1, keys.rows, part_dv);
                if (part.has_sink) {
                    const auto* const terms = static_cast<const float*>(part_dsink.data());
                    auto* const sums = static_cast<float*>(dsink.data());
                    std::transform(terms, terms + dsink.elements(), sums, sums, std::plus<>());
                }
                if (part.bias.rank() > 0) {
                    io::Shape of_queries = whole_.bias.shape();
                    of_queries[2] = static_cast<std::int64_t>(queries.rows.size());
                    HostTensor columns = zeros(of_queries);
                    add_rows(columns, 3, keys.rows, part_dbias);
                    add_rows(dbias, 2, queries.rows, columns);
                }
            }
            add_rows(o, 1, queries.rows, sum_o);
            add_rows(lse, 2, queries.rows, sum_lse);
        }
        const auto rounded = [&](HostTensor& sum) {
            return whole_.dtype() == DType::float32 ? std::move(sum) : io::converted(sum, whole_.dtype());
        };
        whole_.o = rounded(o);
        whole_.lse = std::move(lse);
        whole_.dq = rounded(dq);
        whole_.dk = rounded(dk);
        whole_.dv = rounded(dv);
        whole_.dbias = std::move(dbias);
        whole_.dsink = std::move(dsink);
    }

private:
    /// The tensors and options of one call.
    struct Part {
        Part(const AttentionCase& whole, const Shard& queries, const Shard& keys, bool has_first_keys)
            : k(gathered(whole.k, 1, keys.rows)), v(gathered(whole.v, 1, keys.rows)), options(whole.options),
              has_sink(whole.sink.rank() > 0 && has_first_keys)
        {
            options.positions_q = queries.positions;
            options.positions_k = keys.positions;
            if (!has_sink) {
                options.sink = {};
            }
            if (whole.bias.rank() > 0) {
                bias = gathered(gathered(whole.bias, 2, queries.rows), 3, keys.rows);
                options.bias = std::as_const(bias).view();
            }
            if (whole.mask.rank() > 0) {
                mask = gathered(gathered(whole.mask, 2, queries.rows), 3, keys.rows);
                options.mask = std::as_const(mask).view();
            }
            if (whole.key_padding_mask.rank() > 0) {
                padding = gathered(whole.key_padding_mask, 1, keys.rows);
                options.key_padding_mask = std::as_const(padding).view();
            }
        }

        HostTensor k, v, bias, mask, padding;
        Options options;
        bool has_sink;
    };

    AttentionCase& whole_;
    std::function<Options(Options)> where_;
    std::vector<Shard> queries_, keys_;
};

} // namespace flashomp::testing
