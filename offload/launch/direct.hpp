// Launches past libgomp, which takes 15 µs of its own for each kernel, knows no stream but CUDA's default one, and
// gives a block 48 KB of shared memory at most. The kernels are those that g++ compiled and libgomp has loaded; what
// differs is who enters them. cmake/nvptx/add_entries writes an entry behind the code of each function that says
// mark_entry<NUMBER>(), and the driver launches it. docs/offload.md ("Launches past libgomp") has the whole way.
//
// Compiled into every library that has such kernels, since each has a program of its own on the GPU.
#pragma once

#include "algorithm/team_memory.hpp"

#pragma omp declare target

namespace flashomp::offload {

/// The function that calls this is what entry `number` of its library runs, by all warps of a block. is_copied: the
/// entry is a copy of the function, which has one parameter, and does not call it.
template <int number, bool is_copied>
FLASHOMP_INLINE void mark_entry()
{
    if (is_nvptx()) {
        if constexpr (is_copied) {
            asm volatile("// flashomp_copied_entry %0" ::"n"(number));
        } else {
            asm volatile("// flashomp_entry %0" ::"n"(number));
        }
    }
}

/// %ctaid.x, in such a function.
FLASHOMP_INLINE int this_block()
{
    unsigned block = 0;
    if (is_nvptx()) {
        asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(block));
    }
    return static_cast<int>(block);
}

} // namespace flashomp::offload

#pragma omp end declare target

namespace flashomp::offload {

/// What became of a launch.
struct Direct {
    bool is_there = false; ///< false: nothing was launched, and libgomp is to do it
    int failure = 0;       ///< the driver's CUresult, where the launch or the kernel failed
};

/// Above the number of every entry.
inline constexpr int most_entries = 4096;

struct Entry {
    int number = 0;         ///< below most_entries
    int dynamic_bytes = 0;  ///< of shared memory that a block has besides its arrays
    bool waits = false;     ///< blocks wait for one another, so all are to be at work at one time
    bool is_awaited = true; ///< false: it may still run when the launch returns, and later launches come after it
};

/// What team memory that is dynamic may lose where it begins (team_memory.cpp).
inline constexpr int lost_bytes = 1024;

/// What team memory holds behind the machine's (shared_call.hpp).
inline constexpr int shared_call_bytes = 1360;

/// Runs an entry with so many blocks of so many warps on an OpenMP device and waits for it, where it is to. `there` is
/// the entry's parameter, in the device's memory. Where libgomp's descriptors of kernels are not what they are expected
/// to be, the driver lacks a function, or FLASHOMP_LAUNCH=libgomp, nothing is launched.
Direct launch_directly(const Entry& entry, int device, int blocks, int warps, void* there);

/// Whether launches are possible: found out once for each device.
bool launches_directly(int device);

} // namespace flashomp::offload
