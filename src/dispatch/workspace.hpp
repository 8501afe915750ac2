// Scratch memory on the host or a device, kept between calls and freed at exit.
#pragma once

#include <cstddef>
#include <cstdint>

namespace flashomp {

/// A block of scratch memory, leased from a cache that all threads share; returned when the lease ends.
class Workspace {
public:
    /// At least `bytes` bytes, 64-byte aligned, contents undefined. `device` is an OpenMP device number, -1 the host.
    /// Throws Error when the device or the host has no more memory.
    Workspace(std::int64_t bytes, int device);
    ~Workspace();
    Workspace(const Workspace&) = delete;
    Workspace& operator=(const Workspace&) = delete;
    Workspace(Workspace&& other) noexcept : data_(other.data_), bytes_(other.bytes_), device_(other.device_)
    {
        other.data_ = nullptr;
    }
    Workspace& operator=(Workspace&&) = delete;

    [[nodiscard]] void* data() const { return data_; }
    [[nodiscard]] float* floats() const { return static_cast<float*>(data_); }

private:
    void* data_ = nullptr;
    std::int64_t bytes_ = 0; ///< of the block, at least what was asked for
    int device_ = -1;
};

/// Gives the cached blocks that nobody leases back to the system and the devices.
void release_workspaces();

/// Watches what is leased on one device (-1 the host), by all threads. One watch a device at a time.
class WorkspaceWatch {
public:
    explicit WorkspaceWatch(int device);

    /// The most bytes leased at one time since construction, above what was leased then.
    [[nodiscard]] std::int64_t peak_bytes() const;

private:
    int device_;
    std::int64_t start_;
};

} // namespace flashomp
