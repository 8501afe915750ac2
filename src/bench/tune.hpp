// Which plan is the fastest for a shape, on the device at hand.
#pragma once

#include "check.hpp"
#include "failure.hpp"
#include "timing.hpp"

#include "table.hpp"

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace flashomp::bench {

struct TuneSettings {
    Options options; ///< machine and tiling left open
    DType dtype = DType::float32;
    TimingSettings timing;
    double least_gain = 0.03; ///< a plan must be faster by this to replace plan()'s own choice
};

/// One candidate. Its failure says that plan() refuses the candidate, that the machine failed or that results are
/// wrong.
struct Trial : Failure {
    tuning::Choice choice;
    std::string machine;   ///< as it ran
    bool is_wrong = false; ///< the failure is wrong results
    Accuracy accuracy;
    double seconds = 0; ///< of a call: the median; the only time measured where the trial is far behind
    int repetitions = 0;
};

/// All candidates of one shape and direction. The failure says why nothing was measured.
struct Tuned : Failure {
    tuning::ShapeClass shape_class;
    std::string shape, direction;
    std::vector<Trial> trials; ///< the first is plan()'s own choice
    std::size_t best = 0;      ///< of them
    /// Where another trial than the first was ahead by the least gain: seconds of the first and of that trial, measured
    /// once more with only these two in turn.
    std::optional<std::pair<double, double>> again;

    [[nodiscard]] bool has_wrong() const;

    /// What to keep: nothing where the first was wrong.
    [[nodiscard]] std::optional<tuning::Entry> entry() const;
};

/// Runs every candidate on outputs filled with NaN, checks its outputs against the float64 reference, and times the
/// right candidates, a repetition of each in turn. A candidate that is ahead by the least gain is timed once more
/// against plan()'s choice alone, and must be as far ahead again. The result says what went wrong. After tune() no call
/// of the process uses a tuning table.
[[nodiscard]] Tuned tune(const cost::Shape& shape, bool backward, const TuneSettings& settings,
                         const std::function<void(const std::string&)>& on_start);

} // namespace flashomp::bench
