// Main-memory traffic of one call as a tool outside the process counts it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace flashomp::bench {

struct MeasuredTraffic {
    double read = 0, written = 0; ///< bytes
    std::string tool;             ///< what counted, and what it counts
};

/// Runs `command` + {"--only-calls", N} for N = 0 and 1 under a tool and returns the difference. On a device that is
/// ncu (bytes that all kernels read from and write to device memory); on the host valgrind's cachegrind, a model of one
/// core's L2 cache as the last level (lines fetched on read and write misses, and as many written as missed writes).
/// Throws RunFailure that says what is missing or how the tool failed.
[[nodiscard]] MeasuredTraffic measure_traffic(const std::vector<std::string>& command, bool on_device);

/// The two counters, added up over the kernels of a file that `ncu --csv` wrote; 0 where ncu says that there was no
/// kernel. Throws RunFailure when it holds neither.
[[nodiscard]] MeasuredTraffic read_ncu_csv(const std::string& text);

/// Lines of `line_bytes` that a file of cachegrind counts as missed in the last level. Throws RunFailure when it has
/// none.
[[nodiscard]] MeasuredTraffic read_cachegrind(const std::string& text, std::int64_t line_bytes);

} // namespace flashomp::bench
