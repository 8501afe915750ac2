#include "driver.hpp"

#include <dlfcn.h>

namespace experiment {

namespace {

bool missing = false;

template <class Pointer>
void load(void* library, Pointer& function, const char* name, bool may_lack = false)
{
    function = reinterpret_cast<Pointer>(dlsym(library, name));
    missing = missing || (function == nullptr && !may_lack);
}

} // namespace

bool open_driver(Driver& driver, const char*& why)
{
    void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL); // stays open: libgomp uses it, too
    if (library == nullptr) {
        why = "there is no libcuda.so.1";
        return false;
    }
    load(library, driver.init, "cuInit");
    load(library, driver.version, "cuDriverGetVersion");
    load(library, driver.device_get, "cuDeviceGet");
    load(library, driver.device_name, "cuDeviceGetName");
    load(library, driver.device_attribute, "cuDeviceGetAttribute");
    load(library, driver.primary_retain, "cuDevicePrimaryCtxRetain");
    load(library, driver.ctx_set, "cuCtxSetCurrent");
    load(library, driver.ctx_get, "cuCtxGetCurrent");
    load(library, driver.ctx_synchronize, "cuCtxSynchronize");
    load(library, driver.mem_alloc, "cuMemAlloc_v2");
    load(library, driver.mem_free, "cuMemFree_v2");
    load(library, driver.host_alloc, "cuMemHostAlloc");
    load(library, driver.to_device, "cuMemcpyHtoD_v2");
    load(library, driver.to_host, "cuMemcpyDtoH_v2");
    load(library, driver.to_device_async, "cuMemcpyHtoDAsync_v2");
    load(library, driver.set_bytes, "cuMemsetD8_v2");
    load(library, driver.pointer_attribute, "cuPointerGetAttribute");
    load(library, driver.stream_create, "cuStreamCreate");
    load(library, driver.stream_synchronize, "cuStreamSynchronize");
    load(library, driver.function_attribute, "cuFuncGetAttribute");
    load(library, driver.set_function_attribute, "cuFuncSetAttribute");
    load(library, driver.function_name, "cuFuncGetName", true);
    load(library, driver.module_load, "cuModuleLoadData");
    load(library, driver.module_function, "cuModuleGetFunction");
    load(library, driver.launch, "cuLaunchKernel");
    load(library, driver.link_create, "cuLinkCreate_v2");
    load(library, driver.link_add, "cuLinkAddData_v2");
    load(library, driver.link_complete, "cuLinkComplete");
    load(library, driver.link_destroy, "cuLinkDestroy");
    load(library, driver.error_name, "cuGetErrorName");
    if (missing) {
        why = "libcuda.so.1 lacks a function that the experiment calls";
        return false;
    }
    int device = 0;
    if (driver.init(0) != 0 || driver.device_get(&device, 0) != 0) {
        why = "the CUDA driver finds no device";
        return false;
    }
    return true;
}

const char* name_of(const Driver& driver, Status status)
{
    const char* name = nullptr;
    return driver.error_name(status, &name) == 0 && name != nullptr ? name : "an unknown status";
}

} // namespace experiment
