// Which tensors a host pass has packed once, before it begins, for all its resident blocks.
#pragma once

#include "plan.hpp"

#include <vector>

namespace flashomp {

/// Whether a pass on an instruction set packs its tensors for all blocks where many of these meet each row: not where
/// products take rows as they lie in memory, nor short sequences, whose blocks pack what they need sooner than they get
/// it from another core's cache (docs/host.md).
bool may_pack_for_all(const offload::HostIsa& isa, offload::Pass pass, const Problem& problem);

/// Both that stream past the resident blocks, or none. Packed data are the same whoever packs them, so this changes no
/// bits.
std::vector<Packing> packings_of(const Problem& problem, const PassPlan& pass);

} // namespace flashomp
