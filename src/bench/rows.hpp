// What a measurement says, and its forms: JSON, CSV, a table.
#pragma once

#include "check.hpp"
#include "failure.hpp"
#include "timing.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace flashomp::bench {

/// One shape, dtype and direction on one implementation.
struct Row : Failure {
    std::string direction, dtype, shape; ///< "forward", "bfloat16", "b2_h16_n4096_d128_causal"
    std::string implementation;          ///< "flashomp", "standard"
    std::string backend, machine, ran_on;
    bool on_device = false;
    bool tuned = false;    ///< Report::tuned
    bool is_wrong = false; ///< the failure is an error too large
    Timing timing;
    Accuracy accuracy;
    std::optional<double> kernel_seconds; ///< KernelClock: of one call, the median of as many as there are repetitions
    double kernel_least = 0, kernel_most = 0; ///< of those calls
    std::optional<double> queue_seconds;      ///< CUDA: until a call on a stream has queued its kernels and returns
    std::optional<double> copy_bandwidth;     ///< decoding on the host: bytes/s of a copy, just after (cost::Peaks)
    std::optional<double> read_bandwidth;     ///< then: bytes/s of a sum over memory
    double flops = 0;                         ///< as speeds are quoted (cost::Flops)
    std::optional<std::int64_t> peak_bytes;   ///< measured: outputs, statistics and scratch, above the inputs
    std::int64_t extra_bytes = 0;             ///< planned: Report::extra_bytes
    std::int64_t standard_bytes = 0;          ///< Report::standard_bytes
    double tile_bytes = 0, least_bytes = 0;   ///< main-memory traffic, planned (cost::tile_traffic, least_traffic)

    /// "forward/bfloat16/b2_h16_n4096_d128_causal"
    [[nodiscard]] std::string name() const { return direction + "/" + dtype + "/" + shape; }
    [[nodiscard]] double flops_per_second() const { return timing.median > 0 ? flops / timing.median : 0; }

    /// What has to be read and written, a second, as a share of what a copy reads and writes.
    [[nodiscard]] std::optional<double> bandwidth_share() const
    {
        const bool is_known = copy_bandwidth && timing.median > 0;
        return is_known ? std::optional(least_bytes / timing.median / *copy_bandwidth) : std::nullopt;
    }
};

using Json = nlohmann::ordered_json;

/// A row as in Google Benchmark's files (name, run_name, real_time in ms, aggregate_name "median", error_occurred,
/// label), with more fields.
[[nodiscard]] Json row_json(const Row& row);

/// {"context": ..., "benchmarks": [...]} as text.
[[nodiscard]] std::string file_text(const Json& context, const std::vector<Row>& rows);

[[nodiscard]] std::string csv_text(const std::vector<Row>& rows);

} // namespace flashomp::bench
