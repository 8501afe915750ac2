// What all ranks must agree on before anything moves.
#pragma once

#include "call.hpp"
#include "messages.hpp"

#include <cstdint>
#include <vector>

namespace flashomp::mpi {

/// Compares what the ranks were given, and tells each how many rows the others have. Throws the same Error on all
/// ranks.
[[nodiscard]] Whole agree(const Messages& messages, const Call& call, const Sharding& sharding);

/// What stands for the values of those tensors that are the same on all ranks. Needs validate().
[[nodiscard]] std::vector<std::int64_t> common_values(const Call& call, const Whole& whole, Site& site);
/// Compares it.
void agree_on_values(const Messages& messages, const std::vector<std::int64_t>& mine);

} // namespace flashomp::mpi
