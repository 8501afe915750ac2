#pragma once

#include "problem.hpp"

namespace flashomp {

/// Runs a validated problem on the backend and device it asks for. Throws Error when a device that was named is not
/// there.
Report run(const Problem& problem);

} // namespace flashomp
