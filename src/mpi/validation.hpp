// Whether flashomp would take a rank's part of a call.
#pragma once

#include "call.hpp"
#include "messages.hpp"

namespace flashomp::mpi {

/// Throws Error unless flashomp would take the rank's part, and what its options say of the whole. Needs agree().
void validate(const Call& call, const Whole& whole, const Sharding& sharding, int rank, int ranks, Site& site);

/// Whether validate() takes the call on all ranks.
[[nodiscard]] bool is_taken_everywhere(const Messages& messages, const Call& call, const Whole& whole,
                                       const Sharding& sharding);

} // namespace flashomp::mpi
