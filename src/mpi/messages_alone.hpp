// Calls that send what they would send, and compute nothing: how long messages take that nothing hides.
#pragma once

#include "flashomp/mpi.hpp"

namespace flashomp::mpi {

/// forward() and backward() with agreement, copies, messages and sums, but without the calls on parts. Nothing in the
/// results is of use.
Report forward_messages(const ForwardArgs& args, const Options& options, const Sharding& sharding);
Report backward_messages(const BackwardArgs& args, const Options& options, const Sharding& sharding);

} // namespace flashomp::mpi
