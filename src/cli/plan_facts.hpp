// Everything `flashomp plan` knows about a shape before anything runs.
#pragma once

#include "attention_options.hpp"

#include "budget.hpp"
#include "layers.hpp"
#include "peaks.hpp"
#include "plan.hpp"
#include "plan_sharding.hpp"
#include "shape.hpp"
#include "traffic.hpp"
#include "work.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace flashomp::cli {

/// What the user asked about.
struct PlanFlags {
    RunFlags run;
    std::string shape;
    Window window;
    std::string device = "auto"; ///< or the key of a GPU that need not be here
    std::int64_t layers = 0;     ///< 0: no tables of a model
    std::vector<std::int64_t> seqlens;
    ShardingFlags sharding;
};

/// One direction of the call.
struct DirectionFacts {
    std::string name;          ///< forward, backward
    double flops = 0;          ///< as speeds are quoted
    double executed_flops = 0; ///< as this library's passes carry them out
    Plan plan;
    bool is_tuned = false;                   ///< by a table of `flashomp tune`
    std::vector<cost::Traffic> pass_traffic; ///< of plan.passes
    cost::Traffic standard, tiles, least;
    std::optional<cost::Roofline> at_most;  ///< with every visit to a block from main memory
    std::optional<cost::Roofline> at_least; ///< with every tensor from main memory once
};

struct PlanFacts {
    cost::Shape shape;
    DType dtype = DType::float32;
    std::string where; ///< "host (2 threads)", "NVIDIA H200 (planned, not here)"
    std::string note;  ///< why there
    bool is_device = false;
    cost::Flops flops;
    cost::Saved saved;
    std::vector<DirectionFacts> directions; ///< forward; then backward, which a call with a cache has not
    cost::TileBudget budget;
    cost::OnChip on_chip;
    std::int64_t fast_memory = 0; ///< bytes M of the classic rule: team memory, or a core's L2 cache; 0 when unknown
    cost::Blocks classic; ///< for M in elements of float32, as the tiles are held on the host and plain machines
    cost::Growth growth;
    cost::Peaks peaks;
    std::vector<cost::ModelSaved> model;
    std::vector<cost::Checkpointing> checkpointing;
    std::int64_t layers = 0;
    std::optional<ShardingFacts> sharding;

    [[nodiscard]] bool has_backward() const { return directions.size() > 1; }
};

/// Works it out. Throws Error when the shape, the device or the machine is not allowed.
[[nodiscard]] PlanFacts plan_facts(const PlanFlags& flags, const PlannedRanks& ranks);

/// As tables, or as one JSON object.
void print_plan(const PlanFacts& facts, bool json);

} // namespace flashomp::cli
