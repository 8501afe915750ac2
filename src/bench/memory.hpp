// Peak memory, measured: resident pages on the host, counted allocations on a device.
#pragma once

#include <cstdint>
#include <optional>

namespace flashomp::bench {

/// Makes large allocations of this process come from the system and go back to it, so that resident pages tell what is
/// allocated. For the rest of the process.
void make_allocations_visible();

/// As long as this is there, freed memory stays with the process for its next allocations: those who allocate the same
/// again and again would get and give back pages most of the time. Then all of it goes back, and allocations are
/// visible.
class ReusedMemory {
public:
    ReusedMemory();
    ~ReusedMemory();
    ReusedMemory(const ReusedMemory&) = delete;
    ReusedMemory& operator=(const ReusedMemory&) = delete;
};

/// The most resident memory above that at construction, of the whole process; from /proc/self, in steps of about 0.5
/// MB.
class ResidentPeak {
public:
    ResidentPeak();

    /// Nothing where the system does not say.
    [[nodiscard]] std::optional<std::int64_t> bytes() const;

private:
    std::optional<std::int64_t> start_;
};

/// Bytes of memory that this process may still take: what the system has, within the limit of its control group.
/// Nothing where the system does not say.
[[nodiscard]] std::optional<std::int64_t> available_memory();

} // namespace flashomp::bench
