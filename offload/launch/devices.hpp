// OpenMP's devices and the CUDA contexts that they work in.
#pragma once

namespace flashomp::offload {

/// Number of devices for which this library carries code and that run it: each is asked once with an empty region.
int device_count();

/// Whether a region for this OpenMP device runs there. The device's context is the thread's current one afterwards.
bool device_answers(int device);

/// Whether an OpenMP device, one of device_count(), works in CUDA's primary context of the GPU, so that memory of
/// cudaMalloc and PyTorch is the device's own. Not so where somebody else opened the device in another context first.
bool shares_cuda_memory(int device);

enum class StreamState { done, captured, failed };

/// Waits for what was sent to a CUDA stream of a device that shares_cuda_memory(). Regions run on CUDA's default
/// stream, so that nobody waits for that one (null). A stream that is being captured into a graph stays as it is.
StreamState wait_for_stream(int device, void* stream);

} // namespace flashomp::offload
