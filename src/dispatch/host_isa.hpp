#pragma once

#include "launch/launch.hpp"

#include <string>

namespace flashomp {

/// The best host instruction set of this CPU, or the one FLASHOMP_HOST_ISA names. Throws Error when it names one
/// that this CPU or build does not have.
const offload::HostIsa& choose_host_isa();

/// Whether FLASHOMP_HOST_ISA names one: then it is what runs.
bool is_host_isa_named();

/// What this CPU calls itself; empty where the system does not tell.
const std::string& cpu_model();

} // namespace flashomp
