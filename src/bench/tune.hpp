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
    double least_gain = 0.03; ///< as much faster than plan()'s own choice, at least, is what replaces it
};

/// One candidate. Its failure says that plan() refuses the candidate, that the machine failed or that results are
/// wrong.
struct Trial : Failure {
    tuning::Choice choice;
    std::string machine;   ///< as it ran
    bool is_wrong = false; ///< the failure is wrong results
    Accuracy accuracy;
    double seconds = 0; ///< of a call: the median, or where it is far behind the only one
    int repetitions = 0;
};

/// All candidates of one shape and direction. The failure says why nothing was measured.
struct Tuned : Failure {
    tuning::ShapeClass shape_class;
    std::string shape, direction;
    std::vector<Trial> trials; ///< the first is plan()'s own choice
    std::size_t best = 0;      ///< of them
    /// Seconds of the first and of the best, once more with only the two in turn, where another than
    /// the first was ahead by the least gain.
    std::optional<std::pair<double, double>> again;

    [[nodiscard]] bool has_wrong() const;

    /// What to keep: nothing where the first was wrong.
    [[nodiscard]] std::optional<tuning::Entry> entry() const;
};

/// Runs every candidate on outputs filled with NaN, checks what it wrote against the float64 reference, and times those
/// that are right, a repetition of each in turn. Whoever is first by the least gain meets plan()'s choice once more,
/// alone, and has to be as far ahead again. What goes wrong is said in the result. From then on no call of the process
/// uses a tuning table.
[[nodiscard]] Tuned tune(const cost::Shape& shape, bool backward, const TuneSettings& settings,
                         const std::function<void(const std::string&)>& on_start);

} // namespace flashomp::bench
