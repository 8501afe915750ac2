#pragma once

namespace flashomp::offload {

/// Number of devices for which this library carries code and that run it: each is asked once with an empty region.
int device_count();

/// Whether a region for this OpenMP device runs there.
bool device_answers(int device);

} // namespace flashomp::offload
