// What is decided before anything is launched: machine, block sizes, crews and memory.
#pragma once

#include "device_facts.hpp"
#include "launch/launch.hpp"
#include "problem.hpp"
#include "table.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace flashomp {

/// Where a plan is for.
struct Hardware {
    bool is_device = false;
    Backend backend = Backend::openmp;     ///< openmp or cuda
    int device = -1;                       ///< its number in the backend
    DeviceFacts gpu;                       ///< of the device; matrix_units: those that kernels may use
    int threads = 1;                       ///< host threads
    std::int64_t core_cache_bytes = 0;     ///< a host core's own largest cache; 0 when unknown
    const offload::HostIsa* isa = nullptr; ///< best host instruction set that a call may use
    bool is_isa_named = false;             ///< by the caller: no other one, but for types that it has nothing for
    tuning::Tables tuned;                  ///< what was measured there
};

struct Kernel; // registry.hpp

struct PassPlan {
    const Kernel* kernel = nullptr;
    Machine machine = Machine::host;       ///< the kernel's
    const offload::HostIsa* isa = nullptr; ///< of machine host
    offload::Launch launch;                ///< memory and units not yet assigned
    std::vector<offload::Unit> units;      ///< packed sequences only
    std::int64_t tile_bytes = 0;           ///< of the table of tiles (mask_tiles.hpp); 0 without a mask
    bool sums_apart = false;               ///< backward_key: dV and then dK, each with the scores computed for it
    int value_parts = 1;                   ///< forward: parts of o's columns, each with the scores computed for it

    /// Whether it computes all gradients of few queries in one way along the keys (gpu_few_queries.hpp).
    [[nodiscard]] bool is_gradients_of_few() const
    {
        return launch.pass == offload::Pass::backward_once && machine == Machine::tensor;
    }
    /// Heads of a block that see the same keys: those of a group in a forward pass over few queries on a GPU. On the
    /// host each has keys of its own.
    [[nodiscard]] int heads_on_same_keys() const { return machine == Machine::tensor ? launch.heads_in_block : 1; }
};

struct Plan {
    std::string machine_name;                         ///< as in Report::machine: of all passes, joined by +
    const offload::ScoreKernels* own_score = nullptr; ///< runs the passes of a call with Options::score_mod
    std::vector<PassPlan> passes;                     ///< in order
    int splits = 1;                                   ///< parts of the keys in a forward pass over few queries
    bool merges = false;                              ///< whether a launch of its own puts them together
    std::int64_t merged_blocks = 0;                   ///< blocks of rows whose parts the pass itself puts together
    std::int64_t crew_memory_bytes = 0; ///< memory of all crews, or of a kernel for itself; the most any pass needs
    std::int64_t lse_bytes = 0;
    std::int64_t row_bytes = 0;     ///< D and the LSE residual, backward only
    int head_splits = 1;            ///< parts of a group's query heads in the dK/dV pass
    std::int64_t partial_bytes = 0; ///< partial results of splits or head_splits
    std::int64_t tile_bytes = 0;    ///< the table of tiles of a mask, the largest of all passes
    [[nodiscard]] std::int64_t extra_bytes() const
    {
        return lse_bytes + row_bytes + partial_bytes + crew_memory_bytes + tile_bytes;
    }
};

/// The element type as the kernels see it.
offload::Element kernel_element(DType dtype);

/// The problem as this hardware's passes see it: the same inputs and outputs, with fewer heads where several of one
/// query each read the same keys (groups.hpp). A caller who left machine and tiling open gets those of the hardware's
/// tuning tables, where they have an entry for the problem that plan() can do.
Problem as_computed(const Problem& problem, const Hardware& hardware);

/// Resident blocks of one of its passes, those of all heads.
std::int64_t block_count(const Problem& problem, const PassPlan& pass);

/// For a problem as_computed(). Throws Error when options.machine cannot run on this hardware.
Plan plan(const Problem& problem, const Hardware& hardware);

/// Whether its backward pass computes S and dP once, not twice.
bool is_one_pass(const Plan& plan);

} // namespace flashomp
