// The table of tiles of a pass with masks (algorithm/mask_tiles.hpp), made on the device that runs the pass.
#pragma once

#include "launch/launch.hpp"

namespace flashomp::offload {

/// Where the launch is one of a device and the call has a table: fills it, in a target region of its own. On the host
/// fill_tiles() has done so before.
Ran fill_tiles_there(const Call& call, Call* there);

} // namespace flashomp::offload
