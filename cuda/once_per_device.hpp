// Work that each device needs once. Plain C++, so that tests/unit tries it without a GPU.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>

namespace flashomp::cuda {

/// Does something once for each device, and remembers for which devices that succeeded. Threads may share one.
class OncePerDevice {
public:
    /// Calls set(), which returns a status, unless it has succeeded for this device before. A failure is returned and
    /// not remembered: the next call tries again.
    template <class Set>
    auto operator()(int device, const Set& set) -> decltype(set())
    {
        using Status = decltype(set());
        // A device beyond the word's bits is set each time, which costs time and is not wrong.
        const std::uint64_t bit = device >= 0 && device < 64 ? std::uint64_t{1} << device : 0;
        if ((done_.load(std::memory_order_acquire) & bit) != 0) {
            return Status{};
        }
        const std::lock_guard lock(setting_);
        if ((done_.load(std::memory_order_relaxed) & bit) != 0) { // another thread was first
            return Status{};
        }
        const Status status = set();
        if (status == Status{}) { // 0 is success
            done_.fetch_or(bit, std::memory_order_release);
        }
        return status;
    }

private:
    std::atomic<std::uint64_t> done_ = 0; ///< one bit a device
    std::mutex setting_;
};

} // namespace flashomp::cuda
