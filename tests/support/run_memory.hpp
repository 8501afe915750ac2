// The workspace of runs of a prepared call, on the host.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace flashomp::testing {

/// So many bytes from where a workspace may begin.
class RunMemory {
public:
    explicit RunMemory(std::int64_t bytes) : bytes_(static_cast<std::size_t>(bytes)), memory_(bytes_ + alignment) {}

    std::span<std::byte> span()
    {
        const auto past = reinterpret_cast<std::uintptr_t>(memory_.data()) % alignment;
        return std::span(memory_).subspan(alignment - past, bytes_);
    }

private:
    static constexpr std::size_t alignment = 256;
    std::size_t bytes_;
    std::vector<std::byte> memory_;
};

} // namespace flashomp::testing
