#include "launch/devices.hpp"

#include "launch/cuda_driver.hpp"
#include "launch/launch.hpp"

#include <omp.h>
#include <vector>

namespace flashomp::offload {

namespace {

/// CUDA's primary context of a device, held. It is the thread's current context for as long as this lives; then that is
/// what it was before.
class PrimaryContext {
public:
    explicit PrimaryContext(int device)
    {
        const CudaDriver* const driver = cuda_driver();
        if (driver == nullptr || driver->CtxGetCurrent(&before_) != 0 || driver->DeviceGet(&device_, device) != 0 ||
            driver->DevicePrimaryCtxRetain(&context_, device_) != 0) {
            context_ = nullptr;
            return;
        }
        driver->CtxSetCurrent(context_);
    }
    ~PrimaryContext()
    {
        if (context_ != nullptr) {
            cuda_driver()->CtxSetCurrent(before_);
            cuda_driver()->DevicePrimaryCtxRelease(device_);
        }
    }
    PrimaryContext(const PrimaryContext&) = delete;
    PrimaryContext& operator=(const PrimaryContext&) = delete;

    [[nodiscard]] bool is_current() const
    {
        void* now = nullptr;
        return context_ != nullptr && cuda_driver()->CtxGetCurrent(&now) == 0 && now == context_;
    }

    /// Holds the context until the process ends.
    void keep() const
    {
        void* context = nullptr;
        cuda_driver()->DevicePrimaryCtxRetain(&context, device_);
    }

private:
    void* before_ = nullptr;
    void* context_ = nullptr;
    int device_ = 0;
};

/// For each device whether it shares CUDA's memory.
std::vector<bool> open_devices()
{
    std::vector<bool> shares;
    // A build without GPU code asks nobody: where OMP_TARGET_OFFLOAD is MANDATORY, libgomp would end the process.
    while (has_gpu_code() && static_cast<int>(shares.size()) < omp_get_num_devices()) {
        const int device = static_cast<int>(shares.size());
        // libgomp opens a device in the context that is current, and makes one of its own where none is.
        const PrimaryContext primary(device);
        if (!device_answers(device)) {
            break;
        }
        shares.push_back(primary.is_current());
        if (shares.back()) {
            primary.keep(); // libgomp keeps its address and does not hold it
        }
    }
    return shares;
}

const std::vector<bool>& opened_devices()
{
    static const std::vector<bool>& shares =
        *new std::vector<bool>(open_devices()); // for calls in atexit handlers, too
    return shares;
}

} // namespace

// A device that libgomp lists may still lack an image in this build, and a region for it would then silently run
// on the host with device pointers. So each is asked.
bool device_answers(int device)
{
    int on_host = 1;
#pragma omp target device(device) map(from : on_host)
    on_host = omp_is_initial_device();
    return on_host == 0;
}

int device_count()
{
    return static_cast<int>(opened_devices().size());
}

bool shares_cuda_memory(int device)
{
    return opened_devices().at(static_cast<std::size_t>(device));
}

StreamState wait_for_stream(int device, void* stream)
{
    if (stream == nullptr) {
        return StreamState::done;
    }
    const PrimaryContext current(device); // handles of the thread's default stream mean the current context's
    int status = 0;                       // CU_STREAM_CAPTURE_STATUS_NONE
    const CudaDriver* const driver = cuda_driver();
    if (!current.is_current() || driver->StreamIsCapturing(stream, &status) != 0) {
        return StreamState::failed;
    }
    if (status != 0) {
        return StreamState::captured;
    }
    return driver->StreamSynchronize(stream) == 0 ? StreamState::done : StreamState::failed;
}

} // namespace flashomp::offload
