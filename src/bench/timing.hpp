// Time of a call, by Google Benchmark.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace flashomp::bench {

struct TimingSettings {
    int warmup = 1; ///< calls before the first repetition
    int repetitions = 5;
    double least_seconds = 0.05; ///< a repetition is as many calls as take about this long, at least one
    double most_seconds = 60;    ///< of all repetitions: there are fewer, at least one, where they would take longer
};

/// Wall-clock seconds of one call: each repetition's mean, and their median and extremes.
struct Timing {
    double median = 0, least = 0, most = 0;
    std::int64_t calls = 0; ///< of a repetition
    int repetitions = 0;

    /// (most - least)/median
    [[nodiscard]] double spread() const { return median > 0 ? (most - least) / median : 0; }
};

/// Times `call`. `first_seconds` is what one call took before: it decides how many make a repetition.
[[nodiscard]] Timing time_calls(const std::string& name, const std::function<void()>& call, double first_seconds,
                                const TimingSettings& settings);

[[nodiscard]] double median(std::vector<double> values);

/// What Google Benchmark knows of this machine: date, host name, CPUs and caches, load. Pairs of a name and JSON text.
[[nodiscard]] std::vector<std::pair<std::string, std::string>> machine_context();

} // namespace flashomp::bench
