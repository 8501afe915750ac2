#include "kernel_clock.hpp"

#include "flashomp/error.hpp"

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <fmt/format.h>
#include <mutex>

namespace flashomp::bench {

namespace {

// Of cupti_activity.h, declared here so that the build does not need a CUDA toolkit.
constexpr int concurrent_kernel = 10;    // CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL
constexpr unsigned forced = 1;           // CUPTI_ACTIVITY_FLAG_FLUSH_FORCED
constexpr std::size_t start_offset = 16; // of CUpti_ActivityKernel3 (CUDA 5.5) to CUpti_ActivityKernel13 (CUDA 13.5)
constexpr std::size_t end_offset = 24;
constexpr std::size_t buffer_bytes = 1 << 16;

using NextRecord = int (*)(std::uint8_t* buffer, std::size_t bytes, std::uint8_t** record);
using Requested = void (*)(std::uint8_t** buffer, std::size_t* bytes, std::size_t* most_records);
using Completed = void (*)(void* context, std::uint32_t stream, std::uint8_t* buffer, std::size_t bytes,
                           std::size_t valid);

/// What CUPTI's callbacks add to: it passes them nothing of ours.
struct Log {
    std::mutex mutex;
    NextRecord next = nullptr;
    std::uint64_t nanoseconds = 0;
    int kernels = 0;
};

Log& the_log()
{
    static Log log;
    return log;
}

void request_buffer(std::uint8_t** buffer, std::size_t* bytes, std::size_t* most_records)
{
    *buffer = static_cast<std::uint8_t*>(std::malloc(buffer_bytes));
    *bytes = *buffer == nullptr ? 0 : buffer_bytes;
    *most_records = 0; // as many as fit
}

void read_buffer(void* /*context*/, std::uint32_t /*stream*/, std::uint8_t* buffer, std::size_t /*bytes*/,
                 std::size_t valid)
{
    Log& log = the_log();
    const std::scoped_lock lock(log.mutex);
    for (std::uint8_t* record = nullptr; valid > 0 && log.next(buffer, valid, &record) == 0;) {
        int kind = 0;
        std::uint64_t start = 0;
        std::uint64_t end = 0;
        std::memcpy(&kind, record, sizeof kind);
        if (kind != concurrent_kernel) {
            continue;
        }
        std::memcpy(&start, record + start_offset, sizeof start);
        std::memcpy(&end, record + end_offset, sizeof end);
        if (end > start) { // 0 of one that has not ended
            log.nanoseconds += end - start;
            ++log.kernels;
        }
    }
    std::free(buffer);
}

void* open_cupti()
{
    for (const char* const name : {"libcupti.so.13", "libcupti.so.12", "libcupti.so.11.8", "libcupti.so"}) {
        if (void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL); library != nullptr) {
            return library; // stays open: the driver calls it from now on
        }
    }
    throw RunFailure(
        "libcupti was not found, which records how long kernels run; install the CUDA toolkit or put the folder "
        "that has libcupti.so.13 on LD_LIBRARY_PATH.");
}

template <class Function>
void find(void* library, const char* name, Function& function)
{
    function = reinterpret_cast<Function>(dlsym(library, name));
    if (function == nullptr) {
        throw RunFailure(fmt::format("libcupti lacks {}, which every version since CUDA 6 has.", name));
    }
}

void expect(int status, const char* what)
{
    if (status != 0) {
        throw RunFailure(fmt::format("CUPTI could not {} (status {}); it needs a GPU, and a driver as new as itself.",
                                     what, status));
    }
}

} // namespace

KernelClock::KernelClock()
{
    void* const library = open_cupti();
    int (*take_callbacks)(Requested, Completed) = nullptr;
    find(library, "cuptiActivityRegisterCallbacks", take_callbacks);
    find(library, "cuptiActivityEnable", enable_);
    find(library, "cuptiActivityDisable", disable_);
    find(library, "cuptiActivityFlushAll", flush_);
    find(library, "cuptiActivityGetNextRecord", the_log().next);
    expect(take_callbacks(request_buffer, read_buffer), "start");
}

double KernelClock::seconds_of(const std::function<void()>& call) const
{
    Log& log = the_log();
    {
        const std::scoped_lock lock(log.mutex);
        log.nanoseconds = 0;
        log.kernels = 0;
    }
    struct Recording { // ends whatever the call throws
        const KernelClock& clock;
        ~Recording()
        {
            clock.flush_(forced);
            clock.disable_(concurrent_kernel);
        }
    };
    expect(enable_(concurrent_kernel), "record kernels");
    {
        const Recording recording{*this};
        call();
    }
    const std::scoped_lock lock(log.mutex);
    if (log.kernels == 0) {
        throw RunFailure("CUPTI recorded no kernel of a call; another tool may be tracing this process.");
    }
    return static_cast<double>(log.nanoseconds) * 1e-9;
}

} // namespace flashomp::bench
