// How our target regions begin and end on a GPU, where each step that OpenMP's runtime takes is microseconds
// (docs/offload.md): parameters come by one pointer, nothing is copied back, and a kernel ends where its work ends.
#pragma once

#include <cstdint>
#include <omp.h>

#pragma omp declare target

namespace flashomp::offload {

/// A host address, as a number: a pointer would be mapped.
using FellBackFlag = std::uintptr_t;

/// Called first in a region by every thread: whether it runs where it was sent. One that was sent to a device and fell
/// back to the host must not touch the device's memory; it says so in the host's memory, which only a region on the
/// host can do, and which saves the copy of an answer from the device, 10 µs of a launch.
inline __attribute__((always_inline)) bool is_where_sent(FellBackFlag flag, bool to_device)
{
    if (omp_is_initial_device() != 0) {
        __atomic_store_n(reinterpret_cast<int*>(flag), 1, __ATOMIC_RELAXED);
        return !to_device;
    }
    return true;
}

/// Blocks of this launch. libgomp starts no more than reside on the device at one time, and lets each go on with
/// further team numbers when a team is done, which ours never are: end_region(). omp_get_num_teams() is what was asked
/// for.
int launched_teams();

/// Called last in a region by every thread. On an NVIDIA GPU the warp's lanes exit here, past the end of the parallel
/// region and its barrier of GCC's runtime, which take 16 µs; what the runtime allocated for the block is free again.
/// Elsewhere it does nothing.
void end_region();

} // namespace flashomp::offload

#pragma omp end declare target

namespace flashomp::offload {

class FellBack {
public:
    [[nodiscard]] FellBackFlag flag() { return reinterpret_cast<FellBackFlag>(&raised_); }
    [[nodiscard]] explicit operator bool() const { return __atomic_load_n(&raised_, __ATOMIC_RELAXED) != 0; }

private:
    int raised_ = 0;
};

} // namespace flashomp::offload
