// Memory of the host and of the devices of both backends: the one place where it is got, copied and given back.
#pragma once

#include <cstdint>
#include <string>

namespace flashomp {

/// Whose memory. Blocks of the two backends are kept apart, since libgomp may work in a CUDA context of its own
/// (DeviceFacts::shares_cuda_memory).
struct Space {
    enum class Kind : std::uint8_t { host, openmp, cuda, page_locked };
    Kind kind = Kind::host;
    int device = -1;              ///< page-locked memory of the host is every device's: that of one of them
    void* stream = nullptr;       ///< the CUDA stream of the call, null for the default one
    bool is_asynchronous = false; ///< CUDA: nobody waits for the stream before the call returns

    [[nodiscard]] bool is_host() const { return kind == Kind::host; }

    /// "the host", "device 0".
    [[nodiscard]] std::string name() const;

    /// Whether two calls use the same memory; their streams may differ.
    [[nodiscard]] bool is_same_place(const Space& other) const { return kind == other.kind && device == other.device; }
};

/// Aligned to workspace_alignment; null where there is no more. Of an asynchronous space in the order of its stream.
void* allocate(std::int64_t bytes, const Space& space);
void release(void* memory, const Space& space);

/// Host memory that kernels on every device of the process can write and copies need not lock; null where the driver
/// has none. In the context of a device's space; by the driver's cuMemFreeHost().
void* allocate_page_locked(std::int64_t bytes, const Space& space);

/// What is kept of memory that was released in the order of streams.
void release_unused(const Space& space);

/// Between host memory and a device's, in the order of its stream. What is copied to a device may change as soon as
/// this returns; what is copied from a CUDA device is there after wait(). Throws RunFailure where it failed.
void copy_in(void* target, const Space& space, const void* source, std::int64_t bytes);
void copy_out(void* target, const void* source, const Space& space, std::int64_t bytes);

/// Zeros in a CUDA device's memory, in the order of its stream. Throws RunFailure where it failed.
void clear(void* target, const Space& space, std::int64_t bytes);

/// Waits for all that was sent to the space's stream. Throws RunFailure with what went wrong there.
void wait_for(const Space& space);

} // namespace flashomp
