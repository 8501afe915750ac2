// The plans that `flashomp tune` tries.
#pragma once

#include "plan.hpp"

#include <vector>

namespace flashomp::bench {

/// What a call could be told about machine and tiling, beginning with nothing. Some of them may be refused where the
/// call runs. `problem` leaves both open.
///
/// On the host these are block sizes whose crews' pieces fit a core's own cache. The resident rows of the forward pass
/// are not among them: they do not change the bits, so plan() fits them to the number of threads (docs/host.md), and an
/// entry would hold for all numbers.
///
/// On a GPU they are the machines; on openmp also numbers of teams, in multiples of the multiprocessors; and where the
/// plan has a pass on the plain machine, its block sizes, its threads a team and its memory, one at a time.
[[nodiscard]] std::vector<tuning::Choice> candidates(const Problem& problem, const Hardware& hardware);

} // namespace flashomp::bench
