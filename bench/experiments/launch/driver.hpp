// The CUDA driver's functions that the experiment calls, opened at run time: the machine that builds has no driver.
#pragma once

#include <cstddef>
#include <cstdint>

namespace experiment {

using Status = int; ///< CUresult; 0 is success
using Address = std::uint64_t;
using Context = void*;
using Function = void*;
using Module = void*;
using Stream = void*;
using LinkState = void*;

/// Numbers of cuda.h's enums.
enum : int {
    attribute_threads_per_block = 0,
    attribute_static_shared = 1,
    attribute_local = 3,
    attribute_registers = 4,
    attribute_binary_version = 6,
    attribute_dynamic_shared = 8,
    device_multiprocessors = 16,
    device_major = 75,
    device_minor = 76,
    device_shared_optin = 97,
    device_shared_reserved = 111,
    jit_max_registers = 0,
    jit_error_log = 5,
    jit_error_log_bytes = 6,
    jit_target = 9,
    jit_input_ptx = 1,
    target_90a = 0x10000 + 90,
    stream_non_blocking = 1,
    host_portable_mapped = 3,
    pointer_context = 1,
};

struct Driver {
    Status (*init)(unsigned);
    Status (*version)(int*);
    Status (*device_get)(int*, int);
    Status (*device_name)(char*, int, int);
    Status (*device_attribute)(int*, int, int);
    Status (*primary_retain)(Context*, int);
    Status (*ctx_set)(Context);
    Status (*ctx_get)(Context*);
    Status (*ctx_synchronize)();
    Status (*mem_alloc)(Address*, std::size_t);
    Status (*mem_free)(Address);
    Status (*host_alloc)(void**, std::size_t, unsigned);
    Status (*to_device)(Address, const void*, std::size_t);
    Status (*to_host)(void*, Address, std::size_t);
    Status (*to_device_async)(Address, const void*, std::size_t, Stream);
    Status (*set_bytes)(Address, unsigned char, std::size_t);
    Status (*pointer_attribute)(void*, int, Address);
    Status (*stream_create)(Stream*, unsigned);
    Status (*stream_synchronize)(Stream);
    Status (*function_attribute)(int*, int, Function);
    Status (*set_function_attribute)(Function, int, int);
    Status (*function_name)(const char**, Function); ///< null before CUDA 12.3
    Status (*module_load)(Module*, const void*);
    Status (*module_function)(Function*, Module, const char*);
    Status (*launch)(Function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Stream, void**,
                     void**);
    Status (*link_create)(unsigned, int*, void**, LinkState*);
    Status (*link_add)(LinkState, int, void*, std::size_t, const char*, unsigned, int*, void**);
    Status (*link_complete)(LinkState, void**, std::size_t*);
    Status (*link_destroy)(LinkState);
    Status (*error_name)(Status, const char**);
};

/// False, and a sentence in `why`, where there is no driver, it lacks a function, or it finds no GPU.
bool open_driver(Driver& driver, const char*& why);

/// "CUDA_ERROR_INVALID_VALUE" and so on.
const char* name_of(const Driver& driver, Status status);

} // namespace experiment
