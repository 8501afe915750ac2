// The limit of a kernel's shared memory. A launch with more than 48 KB fails unless the kernel was allowed more. The
// run time keeps that limit for each device (cudaFuncSetAttribute sets it for the current one).
#pragma once

#include "once_per_device.hpp"

#include <cuda_runtime.h>

namespace flashomp::cuda {

/// Allows the kernel all the shared memory that a block of the device can have. The device is the current one.
template <auto kernel>
cudaError_t allow_shared_memory(int device)
{
    static OncePerDevice once;
    return once(device, [device] {
        int most = 0;
        const cudaError_t status = cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
        return status != cudaSuccess ? status
                                     : cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most);
    });
}

} // namespace flashomp::cuda
