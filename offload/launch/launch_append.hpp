// append() as it is launched.
#pragma once

#include "algorithm/append.hpp"
#include "launch/launch.hpp"

namespace flashomp::offload {

/// On host threads.
Ran append(const AppendParams& params, int threads);

/// As a target region on a device, in whose memory the parameters are.
Ran run_append(const AppendParams* there, std::int64_t units, int device);

} // namespace flashomp::offload
