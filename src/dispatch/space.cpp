#include "space.hpp"

#include "workspace.hpp"

#include "launch/cuda_driver.hpp"
#include "launch/devices.hpp"

#include "cuda/kernels.hpp"
#include "cuda/runtime.hpp"

#include "flashomp/error.hpp"

#include <cstring>
#include <fmt/format.h>
#include <new>
#include <omp.h>

namespace flashomp {

namespace {

constexpr std::align_val_t alignment{workspace_alignment};

/// Calls f(driver) in a context of the device; without a driver it does not.
template <class F>
void in_context_of(const Space& space, F f)
{
    const offload::CudaDriver* const driver = offload::cuda_driver();
    if (driver == nullptr) {
        return;
    }
    if (space.kind == Space::Kind::cuda) {
        const cuda::CurrentDevice current(space.device);
        f(*driver);
    } else if (offload::device_answers(space.device)) { // and leaves its context current in this thread
        f(*driver);
    }
}

/// The device that page-locked memory was got for.
Space device_of(const Space& space)
{
    return {cuda::device_count() > 0 ? Space::Kind::cuda : Space::Kind::openmp, space.device};
}

[[noreturn]] void refuse_copy(std::int64_t bytes)
{
    throw RunFailure(fmt::format("copying {} bytes between the host and the device failed.", bytes));
}

} // namespace

std::string Space::name() const
{
    return is_host() || kind == Kind::page_locked ? "the host" : fmt::format("device {}", device);
}

void* allocate(std::int64_t bytes, const Space& space)
{
    switch (space.kind) {
    case Space::Kind::openmp:
        return omp_target_alloc(static_cast<std::size_t>(bytes), space.device);
    case Space::Kind::cuda:
        return space.is_asynchronous ? cuda::allocate_on(space.stream, bytes, space.device)
                                     : cuda::allocate(bytes, space.device);
    case Space::Kind::page_locked:
        return allocate_page_locked(bytes, device_of(space));
    case Space::Kind::host:
        break;
    }
    return ::operator new(static_cast<std::size_t>(bytes), alignment, std::nothrow);
}

void release(void* memory, const Space& space)
{
    switch (space.kind) {
    case Space::Kind::openmp:
        return omp_target_free(memory, space.device);
    case Space::Kind::cuda:
        return space.is_asynchronous ? cuda::release_on(space.stream, memory, space.device)
                                     : cuda::release(memory, space.device);
    case Space::Kind::page_locked:
        in_context_of(device_of(space), [&](const offload::CudaDriver& driver) { driver.MemFreeHost(memory); });
        return;
    case Space::Kind::host:
        break;
    }
    ::operator delete(memory, alignment);
}

void* allocate_page_locked(std::int64_t bytes, const Space& space)
{
    constexpr unsigned portable = 1, mapped = 2; // CU_MEMHOSTALLOC_PORTABLE, _DEVICEMAP
    void* memory = nullptr;
    in_context_of(space, [&](const offload::CudaDriver& driver) {
        if (driver.MemHostAlloc(&memory, static_cast<std::size_t>(bytes), portable | mapped) != 0) {
            memory = nullptr;
        }
    });
    return memory;
}

void release_unused(const Space& space)
{
    if (space.kind == Space::Kind::cuda) {
        cuda::release_unused(space.device);
    }
}

void copy_in(void* target, const Space& space, const void* source, std::int64_t bytes)
{
    if (bytes == 0) {
        return;
    }
    bool done = true;
    switch (space.kind) {
    case Space::Kind::openmp:
        done = omp_target_memcpy(target, source, static_cast<std::size_t>(bytes), 0, 0, space.device,
                                 omp_get_initial_device()) == 0;
        break;
    case Space::Kind::cuda:
        done = cuda::copy(target, source, bytes, cuda::Copy::to_device, space.device, space.stream);
        break;
    case Space::Kind::page_locked:
    case Space::Kind::host:
        std::memcpy(target, source, static_cast<std::size_t>(bytes));
    }
    if (!done) {
        refuse_copy(bytes);
    }
}

void copy_out(void* target, const void* source, const Space& space, std::int64_t bytes)
{
    if (bytes == 0) {
        return;
    }
    bool done = true;
    switch (space.kind) {
    case Space::Kind::openmp:
        done = omp_target_memcpy(target, source, static_cast<std::size_t>(bytes), 0, 0, omp_get_initial_device(),
                                 space.device) == 0;
        break;
    case Space::Kind::cuda:
        done = cuda::copy(target, source, bytes, cuda::Copy::to_host, space.device, space.stream);
        break;
    case Space::Kind::page_locked:
    case Space::Kind::host:
        std::memcpy(target, source, static_cast<std::size_t>(bytes));
    }
    if (!done) {
        refuse_copy(bytes);
    }
}

void clear(void* target, const Space& space, std::int64_t bytes)
{
    if (!cuda::clear(target, bytes, space.device, space.stream)) {
        throw RunFailure(fmt::format("clearing {} bytes on {} failed.", bytes, space.name()));
    }
}

void wait_for(const Space& space)
{
    if (space.kind != Space::Kind::cuda) {
        return; // a call's last OpenMP region is over when it returns
    }
    if (const int status = cuda::wait(space.device, space.stream); status != 0) {
        throw RunFailure(fmt::format("the work on {} failed: {}.", space.name(), cuda::error_text(status)));
    }
}

} // namespace flashomp
