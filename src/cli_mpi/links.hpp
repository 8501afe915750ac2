// What messages between ranks take here: measured for the model that `plan` plays out.
#pragma once

#include "ranks.hpp"

#include "ring_schedule.hpp"

#include <cstdint>

namespace flashomp::cli {

/// Every rank sends `bytes` to the next one and receives as many from the one before, all at once, as in a hop of a
/// ring; latency is that of messages of 8 bytes. Medians, of the slowest rank. Collective. One rank has no links.
[[nodiscard]] cost::Links measured_links(const Ranks& ranks, std::int64_t bytes);

} // namespace flashomp::cli
