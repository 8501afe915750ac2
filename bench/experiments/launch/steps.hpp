// What is launched and measured, by libgomp or past it.
#pragma once

#include "launcher.hpp"

namespace experiment {

struct Bench {
    const Driver& driver;
    Kernels kernels;  ///< what launches of our own use
    bool has_libgomp; ///< libgomp runs the same regions, to compare with
    int multiprocessors;
    Lane lanes[2];
    Address memory = 0; ///< of Call's arrays
};

/// Memory for all steps; false where the driver refuses.
bool prepare(Bench& bench);

/// Results of affine() and runtime() by libgomp and past it, against what the host expects; small: stacks of 16 KiB.
void check_results(Bench& bench, const char* key, bool small_stacks);
/// Times of empty() and affine(), synchronous and queued.
void time_launches(Bench& bench, const char* key);
/// The driver's own floor: a kernel that returns.
void time_floor(Bench& bench);
/// Dynamic shared memory of 96, 160 and as many KB as a block may have.
void use_pool(Bench& bench, const char* key);
/// Whether two streams' kernels run at one time.
void overlap_streams(Bench& bench, const char* key);
/// Entries that call parallel bodies without GCC's run time: results, times, shared memory.
void use_own_entries(Bench& bench, const char* key, Function empty8, Function affine8, Function pool8);

} // namespace experiment
