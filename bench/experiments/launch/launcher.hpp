// How the experiment launches a target region: the compiler's call of GOMP_target_ext is caught (the linker's --wrap),
// and either goes on to libgomp or becomes a cuLaunchKernel of our own, with what the compiler put into the call.
#pragma once

#include "driver.hpp"

#include <cstddef>
#include <string>
#include <vector>

namespace experiment {

using HostFunction = void (*)(void*);

/// What mkoffload stores and registers, as libgomp's plugin of GCC 12 reads it.
struct PtxObject {
    const char* code;
    std::size_t size;
};
struct FunctionName {
    const char* name;
    unsigned short dim[3];
};
struct Image {
    const PtxObject* objects;
    unsigned object_count;
    const char* const* variables;
    unsigned variable_count;
    const FunctionName* functions;
    unsigned function_count;
};
struct Registered {
    unsigned version = 0;
    int target = 0;
    const void* const* host_table = nullptr; ///< functions, their end, variables, their end
    const Image* image = nullptr;
};
/// Of this program, caught from its constructor.
const Registered& registered();

/// libgomp's value in its address map.
struct Descriptor {
    Function function;
    const FunctionName* launch;
    int registers;
    int most_threads;
};

enum class Variables { copied, pinned };

/// The memory that a launch of ours needs, one for each stream that runs at the same time.
struct Lane {
    Stream stream = nullptr;
    Address stacks = 0;
    Address copies = 0;          ///< device memory for the variables
    std::byte* blocks = nullptr; ///< pinned memory for them
    unsigned next = 0;
};

struct Way {
    bool by_libgomp = true;
    bool wait = true;
    Variables variables = Variables::copied;
    unsigned dynamic_bytes = 0;
    std::size_t stack_bytes = 128 * 1024; ///< of a warp, as in libgomp
    Lane* lane = nullptr;
};

/// Kernels of this program by their number in __offload_func_table, from libgomp's map or from a link of our own.
struct Kernels {
    const Driver* driver = nullptr;
    std::vector<Function> functions;
};

/// Regions that this thread enters from now on go this way; true then means that the last one was launched.
void go(const Kernels* kernels, Way way);
Status last_status();
/// The number of the region entered last in __offload_func_table, or -1.
int last_region();
/// Regions are only noted (last_region), not run, while this holds.
void only_note(bool on);

constexpr unsigned variable_blocks = 256;
constexpr std::size_t block_bytes = 256;
Status make_lane(const Driver& driver, std::size_t stack_bytes, Lane& lane);

/// cuLaunchKernel with the three parameters that every .entry of GCC has.
Status launch(const Driver& driver, Function function, const Way& way, int teams, int warps, Address variables);

} // namespace experiment
