// Checks and times calls that all ranks share, beside one rank that makes the call alone.
#pragma once

#include "ranks.hpp"
#include "ranks_rows.hpp"
#include "shards.hpp"

#include "bench_case.hpp"
#include "run.hpp"

#include "host_tensor.hpp"

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace flashomp::cli {

class RanksBench {
public:
    using OnRow = std::function<void(const RanksRow&)>;

    /// `shardings`: those to be measured; all that so many ranks can take where it is empty.
    RanksBench(const Ranks& ranks, const bench::RunSettings& settings, std::vector<mpi::Sharding> shardings);

    /// Of a shape that can be shared out (cost::require_shareable()). Rank 0 is handed the rows: one rank alone first,
    /// then each way to share the call. Collective. What goes wrong is a row that says so.
    void run(const cost::Shape& shape, const OnRow& on_row) const;

private:
    /// What rank 0 finds alone.
    struct Alone {
        RanksRow row;
        std::optional<bench::Expected> expected;
        std::map<std::string, io::HostTensor> results;
    };
    struct Run {
        bench::Timing timing;
        double computing = 0, waiting = 0;
    };

    [[nodiscard]] RanksRow prepared(const cost::Shape& shape, bool backward) const;
    [[nodiscard]] Alone alone(bench::BenchCase& bench, bool backward) const;
    [[nodiscard]] std::vector<mpi::Sharding> shardings(const cost::Shape& shape) const;
    /// The row is complete on rank 0.
    [[nodiscard]] RanksRow shared(bench::BenchCase& bench, bool backward, const mpi::Sharding& sharding,
                                  const cost::Links& links, Alone& alone) const;
    [[nodiscard]] Run time_together(const std::function<mpi::Report()>& call) const;
    void add_plan(const bench::BenchCase& bench, const mpi::Sharding& sharding, RanksRow& row) const;
    /// Sets the failure where a result is farther from that of one rank than both may be from the truth.
    static void compare(bench::BenchCase& bench, const Alone& alone, RanksRow& row);

    const Ranks& ranks_;
    bench::RunSettings settings_;
    std::vector<mpi::Sharding> asked_;
    double devices_ = 1;
};

} // namespace flashomp::cli
