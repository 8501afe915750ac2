// libgomp's address map as a way to its CUfunctions, and every check that comes before one of them is used.
#pragma once

#include "launcher.hpp"

namespace experiment {

/// Fills `kernels` from libgomp's map. False, with findings that say why, where the layout is not the one known.
/// `symbols`: a file of nm's lines "address type name" for this program.
bool find_descriptors(const Driver& driver, const char* symbols, Kernels& kernels);

/// What the experiment relies on, as findings.
void version_facts(const Driver& driver);

} // namespace experiment
