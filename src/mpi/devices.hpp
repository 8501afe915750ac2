// Which GPU a rank takes.
#pragma once

#include "flashomp/options.hpp"

namespace flashomp::mpi {

/// The options with the GPU of the n-th rank of a node: n modulo `devices`, where the caller left the device open and
/// calls would take one.
[[nodiscard]] Options with_device_of_rank(const Options& options, int rank_on_node, int devices);

/// The same with the devices that are there. Where calls would be refused, the options as they are.
[[nodiscard]] Options with_device_of_rank(const Options& options, int rank_on_node);

} // namespace flashomp::mpi
