// Whether a target region fell back to the host, without a copy back from the device, which costs 10 µs of a launch:
// only on the host can a region write to the host's memory, and only there it does.
#pragma once

#include <cstdint>
#include <omp.h>

#pragma omp declare target

namespace flashomp::offload {

/// A host address, as a number: a pointer would be mapped.
using FellBackFlag = std::uintptr_t;

/// Called in the region by every thread.
inline __attribute__((always_inline)) void raise_on_host(FellBackFlag flag)
{
    if (omp_is_initial_device() != 0) {
        __atomic_store_n(reinterpret_cast<int*>(flag), 1, __ATOMIC_RELAXED);
    }
}

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
