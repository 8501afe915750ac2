// Elements of one tensor to another as it is launched.
#pragma once

#include "algorithm/elements.hpp"
#include "launch/launch.hpp"

namespace flashomp::offload {

/// On host threads.
Ran elements(const ElementsParams& params, int threads);

/// As a target region on a device, in whose memory the parameters are.
Ran run_elements(const ElementsParams* there, std::int64_t units, int device);

} // namespace flashomp::offload
