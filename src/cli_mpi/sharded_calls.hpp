// Calls on whole tensors, which every rank has, by way of shards: what a command of flashomp runs.
#pragma once

#include "ranks.hpp"
#include "runner.hpp"
#include "shards.hpp"

#include "problem.hpp"

#include <cstdint>
#include <optional>

namespace flashomp::cli {

/// Takes the shards of this rank out of whole tensors, makes the sharded call, and puts the results of all ranks into
/// the whole ones, on every rank.
class ShardedCalls {
public:
    /// `ranks` outlives this.
    ShardedCalls(const Ranks& ranks, const mpi::Sharding& sharding) : ranks_(ranks), sharding_(sharding) {}

    [[nodiscard]] CallReport forward(const ForwardArgs& whole, const Options& options);
    /// Where o is that of the forward() call made last, by its address, the part of this rank is kept in float32: D is
    /// exact then (attention.hpp, "Shards").
    [[nodiscard]] CallReport backward(const BackwardArgs& whole, const Options& options);

private:
    /// Throws NotBuilt where the scheme needs more heads than q has.
    void expect_heads_of(const Problem& whole) const;
    [[nodiscard]] CallReport reported(const mpi::Report& report, const Problem& whole) const;
    /// Where calls ran: on rank 0, or where that had none, on the first rank that had some.
    void say_where(std::int64_t calls, Report& report) const;

    const Ranks& ranks_;
    mpi::Sharding sharding_;
    std::optional<ForwardShards> forward_; ///< of the last call
    const void* whole_o_ = nullptr;        ///< that it wrote
};

} // namespace flashomp::cli
