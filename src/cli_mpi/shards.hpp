// This rank's part of a call on whole tensors, which every rank has.
#pragma once

#include "flashomp/mpi.hpp"

#include "buffer.hpp"
#include "tensors.hpp"

#include <vector>

namespace flashomp::cli {

/// What both directions have in common: rows taken out of whole tensors, and results put back into them. The whole
/// tensors outlive this.
class Shards {
public:
    Shards(const Shards&) = delete;
    Shards& operator=(const Shards&) = delete;

    /// Fills the results of this rank with NaN.
    void poison();
    /// Puts the rows of all ranks, and the sums over ranks, into the whole results, on every rank, each rounded to the
    /// dtype it has there.
    void put_together() const;

protected:
    ~Shards() = default;
    Shards(const ConstTensorView& q, const ConstTensorView& k, Options options, const mpi::Sharding& sharding);

    /// A tensor like another with so many rows, in memory of its own.
    [[nodiscard]] TensorView in_memory(DType dtype, const ConstTensorView& like, int axis, std::int64_t rows);
    /// This rank's rows of a tensor, in memory of their own.
    [[nodiscard]] TensorView rows_of(const ConstTensorView& whole, int axis, const Positions& rows);
    /// The same without values, to be put together.
    [[nodiscard]] TensorView result(const TensorView& whole, DType dtype, int axis, const Positions& rows);
    /// A result in float32 that is a part of a sum on every rank, to be added up.
    [[nodiscard]] TensorView term(const TensorView& whole);

    [[nodiscard]] bool is_packed() const { return bool(options_.cu_seqlens_q); }
    [[nodiscard]] int axis() const { return is_packed() ? 0 : 1; } ///< of rows; of LSE it is the next

    mpi::Sharding sharding_;
    Positions rows_q_, rows_k_;
    bool has_one_row_a_rank_ =
        false;        ///< of q, on several ranks: a bias of one row is then each rank's own to flashomp::mpi
    Options options_; ///< with this rank's rows of bias and mask

private:
    struct Result {
        TensorView shard, whole;
        int axis;
        const Positions& rows;
    };
    struct Term {
        TensorView own, whole;
    };

    std::vector<mpi::Buffer> memory_;
    std::vector<Result> results_;
    std::vector<Term> terms_;
};

class ForwardShards : public Shards {
public:
    ForwardShards(const ForwardArgs& whole, const Options& options, const mpi::Sharding& sharding, DType dtype_of_o);

    [[nodiscard]] const TensorView& o() const { return own_.o; }
    mpi::Report run() const { return mpi::forward(own_, options_, sharding_); }
    /// Sends what run() sends, and computes nothing.
    mpi::Report run_messages() const;

private:
    ForwardArgs own_;
};

class BackwardShards : public Shards {
public:
    /// `own_o`: this rank's o of any dtype, or none: then it is taken from the whole.
    BackwardShards(const BackwardArgs& whole, const Options& options, const mpi::Sharding& sharding,
                   const ConstTensorView& own_o);

    mpi::Report run() const { return mpi::backward(own_, options_, sharding_); }
    mpi::Report run_messages() const;

private:
    [[nodiscard]] TensorView dbias_of(const TensorView& whole);

    BackwardArgs own_;
};

} // namespace flashomp::cli
