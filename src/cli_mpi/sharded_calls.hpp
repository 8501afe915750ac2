// Calls on whole tensors, which every rank has, by way of shards: for programs that check sharded calls.
#pragma once

#include "flashomp/mpi.hpp"

#include "tensors.hpp"

namespace flashomp::cli {

/// Takes the shards of this rank out of whole tensors, makes the sharded call, and puts the results of all ranks into
/// the whole ones, on every rank.
class ShardedCalls {
public:
    explicit ShardedCalls(const mpi::Sharding& sharding) : sharding_(sharding) {}

    [[nodiscard]] Report forward(const ForwardArgs& whole, const Options& options);
    /// Of the call that forward() made last, whose o it kept in float32: D is exact then (attention.hpp, "Shards").
    [[nodiscard]] Report backward(const BackwardArgs& whole, const Options& options);

private:
    [[nodiscard]] int rank() const;
    [[nodiscard]] int ranks() const;
    [[nodiscard]] Positions rows_of(std::int64_t length) const;
    [[nodiscard]] Options sharded(const Options& options, std::int64_t length_q);

    mpi::Sharding sharding_;
    mpi::Buffer o_, bias_, mask_;
};

} // namespace flashomp::cli
