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

/// In the order of ranks, so that every run has the same bits.
void add_up(const TensorView& own, const TensorView& whole, MPI_Comm comm)
{
    const auto* const first = static_cast<const float*>(own.data);
    std::vector<float> values(first, first + own.elements()), scratch(values.size());
    mpi::Messages(comm).sum(values, scratch);
    ConstTensorView sums = own;
    sums.data = values.data();
    mpi::convert(sums, whole);
}

} // namespace

Shards::Shards(const ConstTensorView& q, const ConstTensorView& k, Options options, const mpi::Sharding& sharding)
    : sharding_(sharding), options_(std::move(options))
{
    const auto at = static_cast<std::size_t>(axis());
    rows_q_ = positions_of(sharding, q.shape.at(at));
    rows_k_ = positions_of(sharding, k.shape.at(at));
    int ranks = 1;
    MPI_Comm_size(sharding.comm, &ranks);
    has_one_row_a_rank_ = ranks > 1 && q.shape.at(at) == ranks; // in both layouts
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

TensorView Shards::term(const TensorView& whole)
{
    const TensorView own = in_memory(DType::float32, whole, 2, whole.shape[2]);
    terms_.push_back({own, whole});
    return own;
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
    for (const Term& term : terms_) {
        add_up(term.own, term.whole, sharding_.comm);
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
    own_.dbias = dbias_of(whole.dbias);
    poison();
}

TensorView BackwardShards::dbias_of(const TensorView& whole)
{
    if (!whole || is_packed()) {
        return whole;
    }
    if (whole.shape[2] != 1) {
        return result(whole, whole.dtype, 2, rows_q_);
    }
    if (!has_one_row_a_rank_) {
        return whole;
    }
    // dbias has the dtype of the bias: in float32 it is rounded once, after the sum.
    const ConstTensorView bias = options_.bias;
    const TensorView wide = in_memory(DType::float32, bias, 2, 1);
    mpi::convert(bias, wide);
    options_.bias = wide;
    return term(whole);
}

mpi::Report BackwardShards::run_messages() const
{
    return mpi::backward_messages(own_, options_, sharding_);
}

} // namespace flashomp::cli
