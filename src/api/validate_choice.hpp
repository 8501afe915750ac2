// What a caller chooses about where and how a call runs.
#pragma once

#include "flashomp/options.hpp"

namespace flashomp {

/// Checks backend, machine, device, threads and tiling by themselves; whether they can be had together is for dispatch
/// to see.
void check_choice(const Options& options);

} // namespace flashomp
