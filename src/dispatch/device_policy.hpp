// What the environment and the build say about devices.
#pragma once

namespace flashomp {

/// Whether OMP_TARGET_OFFLOAD is MANDATORY: who sets it wants no run that ends up on the host by itself.
[[nodiscard]] bool device_is_demanded();

/// "this build has no GPU code" or "no GPU was found".
[[nodiscard]] const char* why_no_device();

} // namespace flashomp
