// What the environment and the build say about devices.
#pragma once

#include "device_facts.hpp"

#include "flashomp/options.hpp"

#include <vector>

namespace flashomp {

/// Whether OMP_TARGET_OFFLOAD is MANDATORY: who sets it wants no run that ends up on the host by itself.
[[nodiscard]] bool device_is_demanded();

/// Whether the backend's GPUs were found by the process that this one was forked from: the driver answers no child.
[[nodiscard]] bool are_devices_of_parent(Backend backend);

/// What devices(backend) lists, with all that is known of each: read from the driver once.
[[nodiscard]] const std::vector<DeviceFacts>& device_facts(Backend backend);

/// "this build has no GPU code" or "no GPU was found".
[[nodiscard]] const char* why_no_device();

} // namespace flashomp
