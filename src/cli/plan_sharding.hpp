// The part of `flashomp plan` about ranks that share a call.
#pragma once

#include "report.hpp"

#include "shared_call.hpp"

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

namespace CLI {
class App;
}

namespace flashomp::cli {

struct PlanFacts;
struct PlanFlags;

/// What the user asked about ranks.
struct ShardingFlags {
    std::vector<std::int64_t> ranks;    ///< a table for each of these numbers; none: nothing about ranks
    std::optional<double> interconnect; ///< bytes/s of a rank, each way
    std::optional<double> latency;      ///< seconds a message
    bool schedule = false;              ///< show every rank and every hop
};

/// What a program that is itself run by ranks plans for.
struct PlannedRanks {
    std::int64_t count = 0; ///< unless --ranks says another; 0: none
    std::function<std::vector<cost::Scheme>(const cost::Shape&, std::int64_t ranks)> schemes = cost::schemes;
};

/// Both directions of the call for every number of ranks and every scheme.
struct ShardingFacts {
    cost::Cluster cluster;
    bool schedule = false;
    std::vector<cost::SharedCall> forward, backward;
};

/// --ranks, --interconnect, --latency and --schedule. `flags` outlives the command.
void add_sharding_options(CLI::App& command, PlanFlags& flags);

/// Throws Error where one of the flags lacks another, or the shape cannot be shared out.
void require_sharding(const cost::Shape& shape, const ShardingFlags& flags, const PlannedRanks& planned);

/// Plays the schedules out. Throws Error where the machine's speeds are not known.
[[nodiscard]] ShardingFacts sharding_facts(const PlanFacts& facts, const ShardingFlags& flags,
                                           const PlannedRanks& planned);

void print_sharding(const ShardingFacts& facts);
[[nodiscard]] Json sharding_json(const ShardingFacts& facts);

} // namespace flashomp::cli
