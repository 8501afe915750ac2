#include "sharded_calls.hpp"

#include <cstring>
#include <span>
#include <utility>

namespace flashomp::cli {

using mpi::Buffer;

namespace {

TensorView in_buffer(Buffer& buffer, DType dtype, const ConstTensorView& like, int axis, std::int64_t rows)
{
    ConstTensorView shape = like;
    shape.shape.at(static_cast<std::size_t>(axis)) = rows;
    buffer = Buffer(shape.elements() * size_of(dtype));
    return TensorView::contiguous(buffer.data(), dtype,
                                  std::span(shape.shape).first(static_cast<std::size_t>(shape.rank)));
}

/// Calls f(part of the whole, part of the shard) for the stretches of a shard.
template <class Whole, class Shard, class F>
void each_stretch(const Whole& whole, const Shard& shard, int axis, const Positions& rows, F f)
{
    std::int64_t row = 0;
    for (const auto& [first, count] : rows.stretches) {
        if (count > 0) {
            f(mpi::part_of(whole, axis, first, count), mpi::part_of(shard, axis, row, count));
        }
        row += count;
    }
}

/// The rank's rows of a tensor.
TensorView shard_of(Buffer& buffer, const ConstTensorView& whole, int axis, const Positions& rows)
{
    const TensorView shard = in_buffer(buffer, whole.dtype, whole, axis, rows.rows());
    each_stretch(whole, shard, axis, rows,
                 [](const ConstTensorView& from, const TensorView& to) { mpi::copy(from, to); });
    return shard;
}

/// Puts every rank's rows into the whole, on every rank: rows of others are zeros in `all`, so that bits can be joined.
void put_together(const ConstTensorView& shard, const TensorView& whole, int axis, const Positions& rows, MPI_Comm comm)
{
    Buffer all;
    const TensorView joined = in_buffer(all, whole.dtype, whole, axis, whole.shape.at(static_cast<std::size_t>(axis)));
    all.clear();
    Buffer rounded;
    const TensorView mine = in_buffer(rounded, whole.dtype, shard, axis, rows.rows());
    mpi::round_into(shard, mine);
    each_stretch(joined, mine, axis, rows, [](const TensorView& to, const TensorView& from) { mpi::copy(from, to); });
    const std::span<std::byte> bytes = all.span();
    constexpr std::size_t most = std::size_t{1} << 30; // MPI counts in an int
    for (std::size_t first = 0; first < bytes.size(); first += most) {
        const std::span<std::byte> some = bytes.subspan(first, std::min(most, bytes.size() - first));
        MPI_Allreduce(MPI_IN_PLACE, some.data(), static_cast<int>(some.size()), MPI_BYTE, MPI_BOR, comm);
    }
    mpi::copy(joined, whole);
}

bool is_packed(const Options& options)
{
    return bool(options.cu_seqlens_q);
}

Report as_one(const mpi::Report& report)
{
    Report one = report.last;
    if (report.calls == 0) {
        one.ran_on = "other ranks alone";
    }
    one.seconds = report.seconds;
    one.extra_bytes += report.extra_bytes;
    return one;
}

} // namespace

int ShardedCalls::rank() const
{
    int rank = 0;
    MPI_Comm_rank(sharding_.comm, &rank);
    return rank;
}

int ShardedCalls::ranks() const
{
    int ranks = 1;
    MPI_Comm_size(sharding_.comm, &ranks);
    return ranks;
}

Positions ShardedCalls::rows_of(std::int64_t length) const
{
    return mpi::positions(sharding_.layout, rank(), ranks(), length);
}

Options ShardedCalls::sharded(const Options& options, std::int64_t length_q)
{
    Options own = options;
    if (!is_packed(options)) {
        const Positions rows = rows_of(length_q);
        if (options.bias && options.bias.shape[2] != 1) {
            own.bias = shard_of(bias_, options.bias, 2, rows);
        }
        if (options.mask && options.mask.shape[2] != 1) {
            own.mask = shard_of(mask_, options.mask, 2, rows);
        }
    }
    return own;
}

Report ShardedCalls::forward(const ForwardArgs& whole, const Options& options)
{
    const int axis = is_packed(options) ? 0 : 1;
    const auto a = static_cast<std::size_t>(axis);
    const Positions rows_q = rows_of(whole.q.shape.at(a)), rows_k = rows_of(whole.k.shape.at(a));
    Buffer q, k, v, lse;
    ForwardArgs own;
    own.q = shard_of(q, whole.q, axis, rows_q);
    own.k = shard_of(k, whole.k, axis, rows_k);
    own.v = shard_of(v, whole.v, axis, rows_k);
    own.o = in_buffer(o_, DType::float32, whole.o, axis, rows_q.rows());
    own.lse = in_buffer(lse, DType::float32, whole.lse, axis + 1, rows_q.rows());
    const mpi::Report report = mpi::forward(own, sharded(options, whole.q.shape.at(a)), sharding_);
    put_together(own.o, whole.o, axis, rows_q, sharding_.comm);
    put_together(own.lse, whole.lse, axis + 1, rows_q, sharding_.comm);
    return as_one(report);
}

Report ShardedCalls::backward(const BackwardArgs& whole, const Options& options)
{
    const int axis = is_packed(options) ? 0 : 1;
    const auto a = static_cast<std::size_t>(axis);
    const Positions rows_q = rows_of(whole.q.shape.at(a)), rows_k = rows_of(whole.k.shape.at(a));
    Buffer q, k, v, lse, dout, dq, dk, dv, dbias;
    BackwardArgs own;
    own.q = shard_of(q, whole.q, axis, rows_q);
    own.k = shard_of(k, whole.k, axis, rows_k);
    own.v = shard_of(v, whole.v, axis, rows_k);
    ConstTensorView o_shape = whole.o;
    o_shape.shape.at(a) = rows_q.rows();
    own.o = ConstTensorView::contiguous(o_.data(), DType::float32,
                                        std::span(o_shape.shape).first(static_cast<std::size_t>(o_shape.rank)));
    own.lse = shard_of(lse, whole.lse, axis + 1, rows_q);
    own.dout = shard_of(dout, whole.dout, axis, rows_q);
    own.dq = in_buffer(dq, whole.dq.dtype, whole.dq, axis, rows_q.rows());
    own.dk = in_buffer(dk, whole.dk.dtype, whole.dk, axis, rows_k.rows());
    own.dv = in_buffer(dv, whole.dv.dtype, whole.dv, axis, rows_k.rows());
    own.dsink = whole.dsink;
    const bool has_bias_rows = whole.dbias && !is_packed(options) && whole.dbias.shape[2] != 1;
    own.dbias = has_bias_rows ? in_buffer(dbias, whole.dbias.dtype, whole.dbias, 2, rows_q.rows()) : whole.dbias;
    const mpi::Report report = mpi::backward(own, sharded(options, whole.q.shape.at(a)), sharding_);
    put_together(own.dq, whole.dq, axis, rows_q, sharding_.comm);
    put_together(own.dk, whole.dk, axis, rows_k, sharding_.comm);
    put_together(own.dv, whole.dv, axis, rows_k, sharding_.comm);
    if (has_bias_rows) {
        put_together(own.dbias, whole.dbias, 2, rows_q, sharding_.comm);
    }
    return as_one(report);
}

} // namespace flashomp::cli
