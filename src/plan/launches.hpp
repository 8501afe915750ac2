// How a machine is launched for a pass: block sizes, crews and memory.
#pragma once

#include "plan.hpp"

namespace flashomp {

/// Throws Error where the caller's tiling cannot be had.
offload::Launch launch_of(Machine machine, offload::Pass pass, const Problem& problem, const Hardware& hardware);

} // namespace flashomp
