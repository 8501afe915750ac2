#pragma once

#include "launch.hpp"

namespace flashomp {

/// The best host instruction set of this CPU, or the one FLASHOMP_HOST_ISA names. Throws Error when it names one
/// that this CPU or build does not have.
const offload::HostIsa& choose_host_isa();

} // namespace flashomp
