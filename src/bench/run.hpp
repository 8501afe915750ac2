// Checks and times one shape.
#pragma once

#include "check.hpp"
#include "kernel_clock.hpp"
#include "rows.hpp"
#include "space.hpp"

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace flashomp::bench {

struct RunSettings {
    Options options;
    DType dtype = DType::float32;
    std::vector<std::string> directions{"forward", "backward"};
    bool beside_standard = false; ///< time standard attention too: has_standard()
    bool kernel_time = false;     ///< Row::kernel_seconds; on a GPU only
    bool prepared = false;        ///< prepare each call once, and time its runs
    TimingSettings timing;
};

/// Keeps where a call ran and what memory it took.
void say_where(const Report& report, Row& row);

/// Checks what the last call left in the outputs, fills them with NaN, runs `time`, whose calls fill them anew, and
/// checks what these left. A row that fails either check says so and has no time; `time` runs only after the first.
/// `expected`, where it is not there, is computed when it is needed.
void check_and_time(BenchCase& bench, std::optional<Expected>& expected, const std::function<void()>& time, Row& row);

/// Runs shapes one after the other and hands out rows as they are there.
class Runner {
public:
    using OnRow = std::function<void(const Row&)>;
    using OnStart = std::function<void(const std::string& name)>;

    /// When kernel times are asked for, throws Error on the host and RunFailure where CUPTI is missing or fails.
    explicit Runner(RunSettings settings);

    /// What goes wrong, down to options that do not fit the shape, is a row that says so.
    void run(const cost::Shape& shape, const OnStart& on_start, const OnRow& on_row);

    /// Exactly `calls` calls of the first direction after what it needs (a forward call for backward), neither checked
    /// nor timed: for those who count events from outside.
    void only_call(const cost::Shape& shape, int calls);

    /// Whether there is a standard attention for where the calls run: on the host, and on a CUDA device.
    [[nodiscard]] bool has_standard() const { return space_.kind != Space::Kind::openmp; }

    [[nodiscard]] bool on_device() const { return !space_.is_host(); }

private:
    Row prepared(const cost::Shape& shape, const std::string& direction) const;
    /// What the GPU spends on a call, where that is asked for.
    void time_kernels(const std::function<void()>& call, Row& row) const;
    /// What the host spends on a call on a CUDA stream; nothing elsewhere, and where calls are so long that queueing
    /// them does not matter.
    std::optional<double> time_to_queue(BenchCase& bench, const std::function<void()>& call, const Row& row) const;
    void run_flashomp(BenchCase& bench, std::optional<Expected>& expected, Row row, const OnRow& on_row);
    void run_standard(BenchCase& bench, std::optional<Expected>& expected, Row row, const OnRow& on_row);

    RunSettings settings_;
    Space space_;
    std::optional<KernelClock> kernel_clock_;
    std::map<std::string, double> standard_speed_; ///< FLOP/s by direction, of the last shape
};

} // namespace flashomp::bench
