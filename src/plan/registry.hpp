// The kernels there are: what each supports, what it needs and how it is launched. plan() asks here and nowhere else
// (docs/adding_a_machine.md).
#pragma once

#include "plan.hpp"

#include "cuda/hopper_kernels.hpp"

#include <span>
#include <string>
#include <string_view>

namespace flashomp {

/// What computes passes of a call on one kind of hardware.
// NOLINTNEXTLINE(clang-analyzer-optin.performance.Padding): in the order in which one reads
struct Kernel {
    std::string_view name; ///< "cuda hopper"
    Backend backend;       ///< openmp or cuda
    Machine machine;

    /// What would have to hold for the kernel to run the pass, besides what obstacle_of() asks; empty: it can.
    std::string (*obstacle)(offload::Pass pass, const Problem& problem, const Hardware& hardware);
    /// Block sizes, crews and memory of the pass. Where backward_query becomes backward_once here, the launch computes
    /// dK and dV, too. Throws Error where the caller's tiling cannot be had.
    offload::Launch (*launch)(offload::Pass pass, const Problem& problem, const Hardware& hardware);
    /// Bytes of device memory that the kernel needs for itself; null: none.
    std::int64_t (*workspace_bytes)(offload::Pass pass, const Problem& problem, const Hardware& hardware) = nullptr;

    /// Forward over few queries: whether crews may have parts of a block's keys.
    bool takes_parts_of_keys = true;
    /// The last crew to arrive at a block puts its parts together (merges_in_pass()).
    bool merges_parts = false;
    /// Where it does: into how many parts the keys of so many blocks are cut; null: split_count() says.
    int (*parts)(std::int64_t blocks, const Problem& problem, const Hardware& hardware) = nullptr;

    /// Whether it is told the blocks of packed sequences (Launch::units), and does not count them for itself.
    bool reads_units = true;

    /// Whether Options::score_mod may be given, whose passes then run in its place (ScoreKernels).
    bool has_own_scores = false;

    /// Forward: whether k and v may be a cache (Options::cache_seqlens and what follows there).
    bool reads_caches = false;

    /// Launches it: on openmp a target region, or null for the host, whose instruction set runs (HostIsa::run); on cuda
    /// on a stream.
    offload::Ran (*run_region)(const offload::Call& here, offload::Call* there) = nullptr;
    int (*run_on_stream)(const cuda::StreamCall& call) = nullptr;
};

/// All kernels but that of float8_e4m3, in the order in which a pass asks them.
[[nodiscard]] std::span<const Kernel> kernels();

/// What would have to hold for the kernel to run the pass; empty: it can.
[[nodiscard]] std::string obstacle_of(const Kernel& kernel, offload::Pass pass, const Problem& problem,
                                      const Hardware& hardware);

/// The first kernel that runs the pass; of the machine that the caller named, if any. Passes that only the plain
/// machine has go there from every machine of a GPU. Throws Error where there is none.
[[nodiscard]] const Kernel& kernel_for(offload::Pass pass, const Problem& problem, const Hardware& hardware);

} // namespace flashomp
