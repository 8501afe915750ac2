// Memory of a prepared call's runs.
#pragma once

#include "result.hpp"

#include <flashomp/prepared.hpp>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <utility>

namespace flashomp::python {

/// One workspace: the host's memory, or a tensor of the framework that has the call's tensors.
class Workspace {
public:
    Workspace(std::int64_t bytes, Memory memory, const TensorArgument& like);
    [[nodiscard]] std::span<std::byte> span() const { return {data_, static_cast<std::size_t>(bytes_)}; }

private:
    std::int64_t bytes_;
    std::unique_ptr<std::byte[]> host_;
    Result device_;
    std::byte* data_ = nullptr;
};

/// A workspace for each stream that the call runs on: a run returns before its kernels are done, and those of a run on
/// another stream may begin meanwhile. Each is memory in the order of its stream.
class Workspaces {
public:
    Workspaces(std::int64_t bytes, Memory memory) : bytes_(bytes), memory_(memory) {}
    ~Workspaces() = default;
    Workspaces(const Workspaces&) = delete;
    Workspaces& operator=(const Workspaces&) = delete;
    Workspaces(Workspaces&&) = delete;
    Workspaces& operator=(Workspaces&&) = delete;

    /// That of the stream, which is made when it is first asked for; of the host there is one.
    std::span<std::byte> of(const TensorArgument& like, std::optional<void*> stream);

private:
    /// Each thread has a stream of its own under the handle cudaStreamPerThread.
    using Stream = std::pair<void*, std::thread::id>;

    std::int64_t bytes_;
    Memory memory_;
    std::map<Stream, Workspace> made_;
};

} // namespace flashomp::python
