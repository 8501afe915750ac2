// What one crew of the forward pass holds on the chip, and what is there to hold it.
#pragma once

#include "plan.hpp"

#include <cstdint>
#include <filesystem>

namespace flashomp::cost {

/// On-chip memory of what a call runs on, in bytes; 0 where unknown.
struct OnChip {
    std::int64_t l1 = 0, l2 = 0, l3 = 0; ///< of a core, a core, all cores
    std::int64_t team_memory = 0;        ///< that a team of this build may use
    std::int64_t shared_memory = 0;      ///< of a multiprocessor, all teams together
    std::int64_t registers = 0;          ///< of a multiprocessor
};

/// Of the CPUs this runs on, as Linux describes them. The C library's sysconf() counts a virtual machine's L3 as the
/// whole processor's, and more.
[[nodiscard]] OnChip host_on_chip(const std::filesystem::path& cpus = "/sys/devices/system/cpu");

/// Of a GPU: what this build uses, and what the GPU has.
[[nodiscard]] OnChip device_on_chip(const DeviceFacts& facts);

/// Bytes of the pieces that a crew of the forward pass keeps while it visits a tile.
struct TileBudget {
    /// Blocks as they are held: float32, or 16 bits on tensor cores, which hold all stages; bfloat16 terms on a CPU's
    /// matrix units.
    std::int64_t q = 0, k = 0, v = 0;
    std::int64_t scores = 0;       ///< S, float32, and where it is packed for the next product that too
    std::int64_t o = 0;            ///< accumulator, float32
    std::int64_t statistics = 0;   ///< of the rows
    std::int64_t in_registers = 0; ///< of these, what a GPU keeps in the registers of the crew
    std::int64_t in_memory = 0;    ///< cache (host) or team-local memory (GPU)

    [[nodiscard]] std::int64_t total() const { return q + k + v + scores + o + statistics; }
};

[[nodiscard]] TileBudget tile_budget(const Problem& problem, const PassPlan& forward);

/// Block sizes by the rule of the first paper, Bc = ⌈M/4d⌉ and Br = min(Bc, d) for M elements of on-chip memory (Dao et
/// al. 2022, Algorithm 1, line 1).
struct Blocks {
    std::int64_t rows = 0, columns = 0;
};
[[nodiscard]] Blocks classic_blocks(std::int64_t on_chip_elements, std::int64_t head_dim);

} // namespace flashomp::cost
