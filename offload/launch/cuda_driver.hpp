// CUDA's driver, for what OpenMP has no words for: what a device is, which context it works in, and streams. The driver
// is opened where it is there; nothing is linked to it.
#pragma once

#include <cstddef>

namespace flashomp::offload {

/// Functions of cuda.h, by their names there without `cu`. 0 is CUDA_SUCCESS; a device is a number, and contexts and
/// streams are addresses.
// NOLINTBEGIN(readability-identifier-naming): the names are cuda.h's
struct CudaDriver {
    int (*DriverGetVersion)(int*) = nullptr;
    int (*DeviceGet)(int*, int) = nullptr;
    int (*DeviceGetName)(char*, int, int) = nullptr;
    int (*DeviceGetAttribute)(int*, int, int) = nullptr;
    int (*DevicePrimaryCtxRetain)(void**, int) = nullptr;
    int (*DevicePrimaryCtxRelease)(int) = nullptr;
    int (*CtxGetCurrent)(void**) = nullptr;
    int (*CtxSetCurrent)(void*) = nullptr;
    int (*CtxSetLimit)(int, std::size_t) = nullptr;
    int (*MemHostAlloc)(void**, std::size_t, unsigned) = nullptr;
    int (*StreamIsCapturing)(void*, int*) = nullptr;
    int (*StreamSynchronize)(void*) = nullptr;
};
// NOLINTEND(readability-identifier-naming)

/// Null where there is no driver, or one without these functions. It stays open: libgomp uses it, too.
const CudaDriver* cuda_driver();

} // namespace flashomp::offload
