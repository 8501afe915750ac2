// Counts what this process asks operator new for: every host allocation of the library passes through it.
#pragma once

#include <cstddef>

namespace flashomp::testing {

struct Allocations {
    std::size_t total = 0;   ///< bytes asked for, freed or not
    std::size_t largest = 0; ///< bytes of the largest single one
};

/// Since the last reset.
Allocations allocations();
void reset_allocations();

} // namespace flashomp::testing
