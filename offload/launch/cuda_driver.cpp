#include "launch/cuda_driver.hpp"

#include <dlfcn.h>
#include <optional>

namespace flashomp::offload {

namespace {

std::optional<CudaDriver> open_driver()
{
    void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
        return {};
    }
    bool has_all = true;
    const auto find = [&]<class Function>(Function& function, const char* name) {
        function = reinterpret_cast<Function>(dlsym(library, name));
        has_all = has_all && function != nullptr;
    };
    CudaDriver driver;
    int (*init)(unsigned) = nullptr;
    find(init, "cuInit");
    find(driver.DriverGetVersion, "cuDriverGetVersion");
    find(driver.DeviceGet, "cuDeviceGet");
    find(driver.DeviceGetName, "cuDeviceGetName");
    find(driver.DeviceGetAttribute, "cuDeviceGetAttribute");
    find(driver.DevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain");
    find(driver.DevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease_v2");
    find(driver.CtxGetCurrent, "cuCtxGetCurrent");
    find(driver.CtxSetCurrent, "cuCtxSetCurrent");
    find(driver.CtxSetLimit, "cuCtxSetLimit");
    find(driver.MemHostAlloc, "cuMemHostAlloc");
    find(driver.MemFreeHost, "cuMemFreeHost");
    find(driver.StreamIsCapturing, "cuStreamIsCapturing");
    find(driver.StreamSynchronize, "cuStreamSynchronize");
    find(driver.PointerGetAttribute, "cuPointerGetAttribute");
    find(driver.MemAlloc, "cuMemAlloc_v2");
    find(driver.MemFree, "cuMemFree_v2");
    find(driver.FuncGetAttribute, "cuFuncGetAttribute");
    find(driver.FuncSetAttribute, "cuFuncSetAttribute");
    find(driver.FuncGetModule, "cuFuncGetModule");
    find(driver.ModuleGetFunction, "cuModuleGetFunction");
    find(driver.LaunchKernel, "cuLaunchKernel");
    find(driver.LaunchCooperativeKernel, "cuLaunchCooperativeKernel");
    const bool is_enough = has_all;
    find(driver.FuncGetName, "cuFuncGetName");
    return is_enough && init(0) == 0 ? std::optional(driver) : std::nullopt;
}

} // namespace

const CudaDriver* cuda_driver()
{
    static const std::optional<CudaDriver> driver = open_driver();
    return driver ? &*driver : nullptr;
}

} // namespace flashomp::offload
