// CUDA's driver, for what OpenMP has no words for: what a device is, which context it works in, streams, and launches.
// The driver is opened where it is there; nothing is linked to it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace flashomp::offload {

/// Functions of cuda.h, by their names there without `cu`. 0 is CUDA_SUCCESS; a device is a number, and contexts,
/// streams, modules and functions are addresses.
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
    int (*MemFreeHost)(void*) = nullptr;
    int (*StreamIsCapturing)(void*, int*) = nullptr;
    int (*StreamSynchronize)(void*) = nullptr;
    int (*PointerGetAttribute)(void*, int, std::uintptr_t) = nullptr;
    int (*MemAlloc)(std::uintptr_t*, std::size_t) = nullptr;
    int (*MemFree)(std::uintptr_t) = nullptr;
    int (*FuncGetAttribute)(int*, int, void*) = nullptr;
    int (*FuncSetAttribute)(void*, int, int) = nullptr;
    int (*FuncGetModule)(void**, void*) = nullptr;
    int (*FuncGetName)(const char**, void*) = nullptr; ///< null before CUDA 12.3
    int (*ModuleGetFunction)(void**, void*, const char*) = nullptr;
    int (*LaunchKernel)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**,
                        void**) = nullptr;
    int (*LaunchCooperativeKernel)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*,
                                   void**) = nullptr;
};
// NOLINTEND(readability-identifier-naming)

/// Null where there is no driver, or one without these functions. It stays open: libgomp uses it, too.
const CudaDriver* cuda_driver();

} // namespace flashomp::offload
