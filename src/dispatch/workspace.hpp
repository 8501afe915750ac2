// Scratch memory on the host or a device, kept between calls and freed at exit.
#pragma once

#include "space.hpp"

#include <cstddef>
#include <cstdint>

namespace flashomp {

/// Where parts of a workspace begin: at multiples of this, as tensor maps and vector loads ask.
inline constexpr std::int64_t workspace_alignment = 256;

/// The bytes that a part of so many takes there.
[[nodiscard]] constexpr std::int64_t in_workspace(std::int64_t bytes)
{
    return (bytes + workspace_alignment - 1) / workspace_alignment * workspace_alignment;
}

/// A block of scratch memory, leased from a cache that all threads share; returned when the lease ends. Of calls that
/// do not wait for their stream it is CUDA's own memory in the order of that stream, so that any handle of a stream
/// will do, and one that is captured into a graph.
class Workspace {
public:
    /// At least `bytes` bytes, aligned to workspace_alignment, contents undefined. Throws RunFailure when the device or
    /// the host has no more memory.
    Workspace(std::int64_t bytes, const Space& space);
    ~Workspace();
    Workspace(const Workspace&) = delete;
    Workspace& operator=(const Workspace&) = delete;
    Workspace(Workspace&& other) noexcept : data_(other.data_), bytes_(other.bytes_), space_(other.space_)
    {
        other.data_ = nullptr;
    }
    Workspace& operator=(Workspace&&) = delete;

    [[nodiscard]] void* data() const { return data_; }
    [[nodiscard]] float* floats() const { return static_cast<float*>(data_); }

private:
    void* data_ = nullptr;
    std::int64_t bytes_ = 0; ///< of the block, at least what was asked for
    Space space_;
};

/// Gives the cached blocks that nobody leases back to the system and the devices.
void release_workspaces();

/// Watches what is leased of one device or the host, by all threads. One watch for each at a time.
class WorkspaceWatch {
public:
    explicit WorkspaceWatch(const Space& space);

    /// The most bytes leased at one time since construction, above what was leased then.
    [[nodiscard]] std::int64_t peak_bytes() const;

    /// Blocks that the cache had to get from the system or the device since construction; none of calls on a stream.
    [[nodiscard]] std::int64_t allocations() const;

private:
    Space space_;
    std::int64_t start_, made_;
};

} // namespace flashomp
