#include "shards.hpp"

#include "messages.hpp"
#include "messages_alone.hpp"

#include <algorithm>
#include <cstring>
#include <span>

namespace flashomp::cli {

using mpi::Buffer;

namespace {

Positions positions_of(const mpi::Sharding& sharding, std::int64_t length)
{
    int rank = 0, ranks = 1;
    MPI_Comm_rank(sharding.comm, &rank);
    MPI_Comm_size(sharding.comm, &ranks);
    return mpi::positions(sharding.layout, rank, ranks, length);
}

TensorView in_buffer(Buffer& buffer, DType dtype, const ConstTensorView& like, int axis, std::int64_t rows)
{
    ConstTensorView shape = like;
    shape.shape.at(static_cast<std::size_t>(axis)) = rows;
    buffer = Buffer(mpi::host_site(), shape.elements() * size_of(dtype));
    return buffer.like(shape, dtype);
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

/// Rows of other ranks are zeros in `all`, so that bits can be joined.
void put_together(const ConstTensorView& shard, const TensorView& whole, int axis, const Positions& rows, MPI_Comm comm)
{
    Buffer all;
    const TensorView joined = in_buffer(all, whole.dtype, whole, axis, whole.shape.at(static_cast<std::size_t>(axis)));
    const std::span<std::byte> bytes = all.host_memory();
    std::fill(bytes.begin(), bytes.end(), std::byte{0});
    Buffer rounded;
    const TensorView mine = in_buffer(rounded, whole.dtype, shard, axis, rows.rows());
    mpi::convert(shard, mine);
    each_stretch(joined, mine, axis, rows, [](const TensorView& to, const TensorView& from) { mpi::copy(from, to); });
    mpi::each_message(bytes, [comm](std::span<std::byte> some) {
        mpi::expect_success(
            MPI_Allreduce(MPI_IN_PLACE, some.data(), static_cast<int>(some.size()), MPI_BYTE, MPI_BOR, comm),
            "MPI_Allreduce");
    });
    mpi::copy(joined, whole);
}

} // namespace

Shards::Shards(const ConstTensorView& q, const ConstTensorView& k, Options options, const mpi::Sharding& sharding)
    : sharding_(sharding), options_(std::move(options))
{
    const auto at = static_cast<std::size_t>(axis());
    rows_q_ = positions_of(sharding, q.shape.at(at));
    rows_k_ = positions_of(sharding, k.shape.at(at));
    if (is_packed()) {
        return;
    }
    for (ConstTensorView* const pairs : {&options_.bias, &options_.mask}) {
        if (*pairs && pairs->shape[2] != 1) {
            *pairs = rows_of(*pairs, 2, rows_q_);
        }
    }
}

TensorView Shards::in_memory(DType dtype, const ConstTensorView& like, int axis, std::int64_t rows)
{
    return in_buffer(memory_.emplace_back(), dtype, like, axis, rows);
}

TensorView Shards::rows_of(const ConstTensorView& whole, int axis, const Positions& rows)
{
    const TensorView shard = in_memory(whole.dtype, whole, axis, rows.rows());
    each_stretch(whole, shard, axis, rows,
                 [](const ConstTensorView& from, const TensorView& to) { mpi::copy(from, to); });
    return shard;
}

TensorView Shards::result(const TensorView& whole, DType dtype, int axis, const Positions& rows)
{
    const TensorView shard = in_memory(dtype, whole, axis, rows.rows());
    results_.push_back({shard, whole, axis, rows});
    return shard;
}

void Shards::poison()
{
    for (const Result& result : results_) {
        std::memset(result.shard.data, 0xFF,
                    static_cast<std::size_t>(result.shard.elements() * size_of(result.shard.dtype)));
    }
}

void Shards::put_together() const
{
    for (const Result& result : results_) {
        cli::put_together(result.shard, result.whole, result.axis, result.rows, sharding_.comm);
    }
}

ForwardShards::ForwardShards(const ForwardArgs& whole, const Options& options, const mpi::Sharding& sharding,
                             DType dtype_of_o)
    : Shards(whole.q, whole.k, options, sharding)
{
    own_.q = rows_of(whole.q, axis(), rows_q_);
    own_.k = rows_of(whole.k, axis(), rows_k_);
    own_.v = rows_of(whole.v, axis(), rows_k_);
    own_.o = result(whole.o, dtype_of_o, axis(), rows_q_);
    own_.lse = result(whole.lse, DType::float32, axis() + 1, rows_q_);
    poison();
}

mpi::Report ForwardShards::run_messages() const
{
    return mpi::forward_messages(own_, options_, sharding_);
}

BackwardShards::BackwardShards(const BackwardArgs& whole, const Options& options, const mpi::Sharding& sharding,
                               const ConstTensorView& own_o)
    : Shards(whole.q, whole.k, options, sharding)
{
    own_.q = rows_of(whole.q, axis(), rows_q_);
    own_.k = rows_of(whole.k, axis(), rows_k_);
    own_.v = rows_of(whole.v, axis(), rows_k_);
    own_.o = own_o ? own_o : rows_of(whole.o, axis(), rows_q_);
    own_.lse = rows_of(whole.lse, axis() + 1, rows_q_);
    own_.dout = rows_of(whole.dout, axis(), rows_q_);
    own_.dq = result(whole.dq, whole.dq.dtype, axis(), rows_q_);
    own_.dk = result(whole.dk, whole.dk.dtype, axis(), rows_k_);
    own_.dv = result(whole.dv, whole.dv.dtype, axis(), rows_k_);
    own_.dsink = whole.dsink;
    const bool has_bias_rows = whole.dbias && !is_packed() && whole.dbias.shape[2] != 1;
    own_.dbias = has_bias_rows ? result(whole.dbias, whole.dbias.dtype, 2, rows_q_) : whole.dbias;
    poison();
}

mpi::Report BackwardShards::run_messages() const
{
    return mpi::backward_messages(own_, options_, sharding_);
}

} // namespace flashomp::cli
