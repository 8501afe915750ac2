// The second way: the program links its own PTX, which mkoffload stored, and libgomp never sees the kernels.
#pragma once

#include "launcher.hpp"

namespace experiment {

struct LinkOptions {
    int target = 0;        ///< CUjit_target; 0: what the driver takes for the context's device
    int max_registers = 0; ///< 0: no bound
    bool entries = false;  ///< also write entries of our own, which call parallel bodies without GCC's run time
};

struct OwnProgram {
    Module module = nullptr;
    Kernels kernels;
};

/// A module's text, and behind it an entry of our own for each parallel body.
std::string with_entries(const std::string& ptx);

/// Findings under `key`; false where a step fails, which its finding then names.
bool link_program(const Driver& driver, const std::string& key, LinkOptions options, OwnProgram& program);

/// The entry of our own for a region, by a part of its name such as "affineILi8EE"; null where there is none.
/// Its first parameter is what the parallel body captures: one pointer.
Function own_entry(const Driver& driver, const OwnProgram& program, const std::string& region);

} // namespace experiment
