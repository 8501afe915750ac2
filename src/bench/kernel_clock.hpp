// How long a GPU is busy with the kernels of a call.
#pragma once

#include <functional>

namespace flashomp::bench {

/// Reads CUPTI's records of kernels. CUPTI is NVIDIA's tracing library, part of the CUDA toolkit and of PyTorch's
/// packages for CUDA; the constructor opens the library. A process has one record of kernels, so use one clock at a
/// time.
class KernelClock {
public:
    /// Throws RunFailure where CUPTI is not installed or does not work.
    KernelClock();

    /// Seconds from start to end of each kernel that ran during `call`, summed. Gaps between kernels and copies
    /// do not count; kernels that other threads begin meanwhile do. Throws RunFailure where CUPTI recorded none.
    [[nodiscard]] double seconds_of(const std::function<void()>& call) const;

private:
    int (*enable_)(int) = nullptr;
    int (*disable_)(int) = nullptr;
    int (*flush_)(unsigned) = nullptr;
};

} // namespace flashomp::bench
