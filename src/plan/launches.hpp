// How a machine is launched for a pass: block sizes, crews and memory. Each throws Error where the caller's tiling
// cannot be had.
#pragma once

#include "plan.hpp"

namespace flashomp {

[[nodiscard]] offload::Launch host_launch_of(offload::Pass pass, const Problem& problem, const Hardware& hardware);

/// Plain blocks whose pieces fit the team-local memory of a GPU: the fastest on an H200, fastest first (OpenMP,
/// measured at head_dim 64, docs/log/offload-history.md). A CUDA block has more memory, and 64 x 32 scores are work for
/// all its threads.
[[nodiscard]] offload::Launch plain_launch_of(offload::Pass pass, const Problem& problem, const Hardware& hardware);

/// Of the tensor and the Hopper machine.
[[nodiscard]] offload::Launch tensor_launch_of(Machine machine, offload::Pass pass, const Problem& problem,
                                               const Hardware& hardware);

} // namespace flashomp
