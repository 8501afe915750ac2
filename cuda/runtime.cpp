#include "runtime.hpp"
#include "kernels.hpp"

#include <atomic>
#include <cstdint>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <limits>
#include <map>
#include <mutex>

namespace flashomp::cuda {

namespace {

constexpr int least_major = 8; // cp.async and bfloat16 products

int attribute(cudaDeviceAttr which, int device)
{
    int value = 0;
    cudaDeviceGetAttribute(&value, which, device);
    return value;
}

std::string version_text(int number)
{
    return std::to_string(number / 1000) + "." + std::to_string(number % 1000 / 10);
}

/// cuCtxGetCurrent() and cuCtxSetCurrent(), which the run time has no calls for.
struct Driver {
    int (*get)(void**) = nullptr;
    int (*set)(void*) = nullptr;
};

const Driver& driver()
{
    static const Driver found = [] {
        Driver functions;
        if (void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL); library != nullptr) { // stays open
            functions.get = reinterpret_cast<int (*)(void**)>(dlsym(library, "cuCtxGetCurrent"));
            functions.set = reinterpret_cast<int (*)(void*)>(dlsym(library, "cuCtxSetCurrent"));
        }
        return functions;
    }();
    return found;
}

/// A failure that is not to be found as the next launch's.
bool is_done(cudaError_t status)
{
    if (status != cudaSuccess) {
        static_cast<void>(cudaGetLastError());
    }
    return status == cudaSuccess;
}

/// The library's own pools, so that nobody else's settings count. They live as long as the process: memory of them may
/// be in use on streams until then.
class Pools {
public:
    /// Of a device; null where it has none yet.
    cudaMemPool_t find(int device)
    {
        const std::lock_guard lock(mutex_);
        const auto found = pools_.find(device);
        return found != pools_.end() ? found->second : nullptr;
    }

    /// Made where it has none yet; null where that fails.
    cudaMemPool_t make(int device)
    {
        const std::lock_guard lock(mutex_);
        if (const auto found = pools_.find(device); found != pools_.end()) {
            return found->second;
        }
        cudaMemPoolProps properties{};
        properties.allocType = cudaMemAllocationTypePinned;
        properties.location = {cudaMemLocationTypeDevice, device};
        cudaMemPool_t pool = nullptr;
        if (!is_done(cudaMemPoolCreate(&pool, &properties))) {
            return nullptr;
        }
        // Else whoever waits for a stream gives all unused memory back to the device.
        std::uint64_t keep = std::numeric_limits<std::uint64_t>::max();
        is_done(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep));
        return pools_[device] = pool;
    }

private:
    std::mutex mutex_;
    std::map<int, cudaMemPool_t> pools_;
};

Pools& pools()
{
    static Pools& instance = *new Pools;
    return instance;
}

} // namespace

bool is_built()
{
    return true;
}

const char* error_text(int error)
{
    return cudaGetErrorString(static_cast<cudaError_t>(error));
}

int device_count()
{
    static const int count = [] {
        int listed = 0;
        if (cudaGetDeviceCount(&listed) != cudaSuccess) {
            static_cast<void>(cudaGetLastError()); // it would be the first launch's otherwise
            return 0;
        }
        // Numbers are CUDA's own, so they end at the first device that is too old.
        int usable = 0;
        while (usable < listed && attribute(cudaDevAttrComputeCapabilityMajor, usable) >= least_major) {
            ++usable;
        }
        return usable;
    }();
    return count;
}

DeviceFacts device_facts(int device)
{
    DeviceFacts facts;
    cudaDeviceProp properties{};
    if (cudaGetDeviceProperties(&properties, device) == cudaSuccess) {
        facts.name = properties.name;
        facts.major = properties.major;
        facts.minor = properties.minor;
        facts.multiprocessors = properties.multiProcessorCount;
        facts.registers = properties.regsPerMultiprocessor;
        facts.shared_bytes = static_cast<std::int64_t>(properties.sharedMemPerMultiprocessor);
        facts.l2_bytes = properties.l2CacheSize;
        facts.matrix_units = matrix_units_of(facts.major, facts.minor);
    }
    int driver = 0;
    if (cudaDriverGetVersion(&driver) == cudaSuccess) {
        facts.driver = version_text(driver);
    }
    return facts;
}

CurrentDevice::CurrentDevice(int device)
{
    if (driver().get == nullptr || driver().set == nullptr) {
        cudaSetDevice(device);
        return;
    }
    driver().get(&before_);
    // The run time takes a microsecond to find the primary context: it is asked once, and again where somebody has
    // destroyed that.
    constexpr std::size_t most = 64;
    static std::atomic<void*> known[most];
    const auto index = static_cast<std::size_t>(device);
    void* const primary = index < most ? known[index].load() : nullptr;
    if (primary != nullptr && (before_ == primary || driver().set(primary) == 0)) {
        is_set_ = before_ != primary;
        return;
    }
    driver().set(nullptr); // with none, the run time takes the device's primary one
    cudaSetDevice(device);
    void* now = nullptr;
    if (index < most && driver().get(&now) == 0) {
        known[index] = now;
    }
}

CurrentDevice::~CurrentDevice()
{
    if (driver().set != nullptr && is_set_) {
        driver().set(before_);
    }
}

void* allocate(std::int64_t bytes, int device)
{
    const CurrentDevice current(device);
    void* memory = nullptr;
    if (cudaMalloc(&memory, static_cast<std::size_t>(bytes)) != cudaSuccess) {
        static_cast<void>(cudaGetLastError());
        return nullptr;
    }
    return memory;
}

void release(void* memory, int device)
{
    const CurrentDevice current(device);
    cudaFree(memory); // waits for what still uses it
}

bool has_stream_memory(int device)
{
    return attribute(cudaDevAttrMemoryPoolsSupported, device) != 0;
}

void* allocate_on(void* stream, std::int64_t bytes, int device)
{
    const CurrentDevice current(device);
    const cudaMemPool_t pool = pools().make(device);
    void* memory = nullptr;
    const bool is_there = pool != nullptr && is_done(cudaMallocFromPoolAsync(&memory, static_cast<std::size_t>(bytes),
                                                                             pool, static_cast<cudaStream_t>(stream)));
    return is_there ? memory : nullptr;
}

void release_on(void* stream, void* memory, int device)
{
    const CurrentDevice current(device);
    is_done(cudaFreeAsync(memory, static_cast<cudaStream_t>(stream)));
}

void release_unused(int device)
{
    if (const cudaMemPool_t pool = pools().find(device); pool != nullptr) {
        const CurrentDevice current(device);
        is_done(cudaMemPoolTrimTo(pool, 0));
    }
}

std::int64_t reserved_bytes(int device)
{
    std::uint64_t bytes = 0;
    if (const cudaMemPool_t pool = pools().find(device); pool != nullptr) {
        const CurrentDevice current(device);
        is_done(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReservedMemCurrent, &bytes));
    }
    return static_cast<std::int64_t>(bytes);
}

bool copy(void* target, const void* source, std::int64_t bytes, Copy direction, int device, void* stream)
{
    const CurrentDevice current(device);
    const cudaMemcpyKind kind = direction == Copy::to_device ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost;
    return is_done(
        cudaMemcpyAsync(target, source, static_cast<std::size_t>(bytes), kind, static_cast<cudaStream_t>(stream)));
}

bool clear(void* target, std::int64_t bytes, int device, void* stream)
{
    const CurrentDevice current(device);
    return is_done(cudaMemsetAsync(target, 0, static_cast<std::size_t>(bytes), static_cast<cudaStream_t>(stream)));
}

bool is_captured(int device, void* stream)
{
    const CurrentDevice current(device);
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    return is_done(cudaStreamIsCapturing(static_cast<cudaStream_t>(stream), &status)) &&
           status != cudaStreamCaptureStatusNone;
}

int wait(int device, void* stream)
{
    const CurrentDevice current(device);
    return cudaStreamSynchronize(static_cast<cudaStream_t>(stream));
}

bool is_idle(int device, void* stream)
{
    const CurrentDevice current(device);
    const cudaError_t status = cudaStreamQuery(static_cast<cudaStream_t>(stream));
    static_cast<void>(cudaGetLastError()); // "not ready" is no launch's failure
    return status != cudaErrorNotReady;
}

void* copying_stream(int device)
{
    static std::mutex mutex;
    static std::map<int, cudaStream_t>& streams = *new std::map<int, cudaStream_t>;
    const std::lock_guard lock(mutex);
    const auto [found, is_new] = streams.try_emplace(device, nullptr);
    if (is_new) {
        const CurrentDevice current(device);
        if (!is_done(cudaStreamCreateWithFlags(&found->second, cudaStreamNonBlocking))) {
            streams.erase(found);
            return nullptr;
        }
    }
    return found->second;
}

void* mark(int device, void* stream)
{
    const CurrentDevice current(device);
    cudaEvent_t event = nullptr;
    if (!is_done(cudaEventCreateWithFlags(&event, cudaEventDisableTiming))) {
        return nullptr;
    }
    if (!is_done(cudaEventRecord(event, static_cast<cudaStream_t>(stream)))) {
        is_done(cudaEventDestroy(event));
        return nullptr;
    }
    return event;
}

bool is_over(int device, void* mark)
{
    const CurrentDevice current(device);
    const cudaError_t status = cudaEventQuery(static_cast<cudaEvent_t>(mark));
    static_cast<void>(cudaGetLastError());
    return status != cudaErrorNotReady;
}

bool follow(int device, void* stream, void* mark)
{
    const CurrentDevice current(device);
    return is_done(cudaStreamWaitEvent(static_cast<cudaStream_t>(stream), static_cast<cudaEvent_t>(mark), 0));
}

void forget(int device, void* mark)
{
    const CurrentDevice current(device);
    is_done(cudaEventDestroy(static_cast<cudaEvent_t>(mark)));
}

} // namespace flashomp::cuda
