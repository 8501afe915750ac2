// Which tensors a host pass has packed once, before it begins, for all its resident blocks.
#pragma once

#include "plan.hpp"

#include <vector>

namespace flashomp {

/// Both that stream past the resident blocks, or none: where the instruction set's products take them as they are, or
/// few blocks meet each row. Packed data are the same whoever packs them, so this changes no bits.
std::vector<Packing> packings_of(const Problem& problem, const PassPlan& pass);

} // namespace flashomp
