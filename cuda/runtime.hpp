// CUDA devices and their memory, in plain C++: no header of CUDA's beyond cuda/. Every call names its device and leaves
// the thread's current device as it was.
#pragma once

#include "device_facts.hpp"

#include <cstdint>

namespace flashomp::cuda {

/// Devices that can run this build's kernels (compute capability 8.0 or newer); 0 without a driver, a GPU or CUDA code.
int device_count();
DeviceFacts device_facts(int device);

/// Makes a device's primary context the thread's current one for as long as this lives, and then what was current
/// before: libgomp leaves its own context current, and takes whatever it finds there for its own the next time.
class CurrentDevice {
public:
    explicit CurrentDevice(int device);
    ~CurrentDevice(); // NOLINT(performance-trivially-destructible): absent.cpp's has nothing to do
    CurrentDevice(const CurrentDevice&) = delete;
    CurrentDevice& operator=(const CurrentDevice&) = delete;

private:
    // absent.cpp has no use for them
    [[maybe_unused]] void* before_ = nullptr;
    [[maybe_unused]] bool is_set_ = true;
};

/// Null where the device has no more.
void* allocate(std::int64_t bytes, int device);
void release(void* memory, int device);

/// The same in the order of a stream, whose handle may be any of CUDA's. What is given back stays with the process, for
/// later calls on any stream, until release_unused(). Of a stream that is captured into a graph, memory is the graph's.
/// Only on devices that have such memory.
bool has_stream_memory(int device);
void* allocate_on(void* stream, std::int64_t bytes, int device);
void release_on(void* stream, void* memory, int device);
void release_unused(int device);

/// Bytes that allocate_on() has got from the device so far and not given back.
std::int64_t reserved_bytes(int device);

enum class Copy { to_device, to_host };

/// On the stream (a cudaStream_t). From and to pageable memory: `source` may change as soon as this returns, and what
/// is copied to the host is there after wait(). False where it failed.
bool copy(void* target, const void* source, std::int64_t bytes, Copy direction, int device, void* stream);

/// Zeros on the stream. False where it failed.
bool clear(void* target, std::int64_t bytes, int device, void* stream);

/// Whether what is sent to the stream is captured into a graph.
bool is_captured(int device, void* stream);

/// Waits for the stream. 0, or the cudaError_t of anything that failed on it.
int wait(int device, void* stream);

/// Whether there is nothing to wait for, or something failed.
bool is_idle(int device, void* stream);

// Copies beside the work of other streams.

/// A stream of this library's own, which none waits for; null where it cannot be made. It stays until the process ends.
void* copying_stream(int device);

/// What was sent to the stream so far, to be given to forget(); null where it failed.
void* mark(int device, void* stream);
bool is_over(int device, void* mark); ///< or has failed
/// What is sent to the stream from now on comes after that. False where it failed.
bool follow(int device, void* stream, void* mark);
void forget(int device, void* mark);

} // namespace flashomp::cuda
