// Are the results right? Asked before anything is timed, and of what the timed calls left.
#pragma once

#include "accuracy.hpp"
#include "bench_case.hpp"
#include "reference.hpp"
#include "sample.hpp"

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace flashomp::bench {

/// By what results are judged.
enum class Rule : std::uint8_t {
    strict, ///< reference::judge()
    wide    ///< reference::tolerance(), FlashAttention-2's own: for yardsticks and for LSE of 8-bit operands
};

/// Errors of what was compared against the float64 reference, and what the tolerance rule allows
/// (reference/accuracy.hpp). The rule is applied to each block of rows or keys, over all heads compared, so that early
/// rows of a causal mask, whose errors are large, excuse no others. The errors and bounds here are largest differences,
/// those of the block that comes nearest to its bound or goes farthest beyond. The rule has other limits, too: failures
/// names what any of them refused.
struct Accuracy {
    double o = 0, lse = 0, dq = 0, dk = 0, dv = 0, dbias = 0;
    double bound_o = 0, bound_lse = 0, bound_dq = 0, bound_dk = 0, bound_dv = 0, bound_dbias = 0;
    /// float8_e4m3: the largest error of o, and the root of the mean square relative to that of o, beside what the
    /// inputs give before they are rounded to 8 bits.
    std::optional<double> unrounded_o, unrounded_rms;
    bool has_gradients = false;
    bool has_dkv = false;
    bool has_dbias = false;
    bool after_timing = false; ///< compared again, in outputs that were filled with NaN before the timed calls
    std::string compared;      ///< Sample::text()
    std::optional<Sample> sample;
    std::string failures;     ///< "dq: root mean square 2.1e-3 > 1e-3; dk: ..."
    std::string nearest;      ///< "dq, root mean square": of all limits, the one that failed or is nearest to failing
    double nearest_share = 0; ///< its value over its bound
    std::map<std::string, double, std::less<>> widest; ///< of each result, the largest bound of a block

    [[nodiscard]] bool is_good() const { return failures.empty(); }

    /// Takes in how a block of a result was judged.
    void take(std::string_view result, const reference::Verdict& verdict);

    /// "error of o 1e-2 (bound 1e-3)" and so on, for a result that is not.
    [[nodiscard]] std::string text() const;
};

/// What the results of a case are compared with, of each part of its sample: float64, the same with the element type's
/// rounding, and with float32's, which is what LSE is.
struct Expected {
    std::vector<reference::ChosenValues> exact, naive, single; ///< gradients for backward only
};

/// From the inputs alone: no result of a call is read.
[[nodiscard]] Expected expected(BenchCase& bench, bool backward);

/// Compares the last results of `bench`: those that Sample names.
[[nodiscard]] Accuracy check(BenchCase& bench, bool backward);

/// The same with what expected() gave for the case, which takes most of the time. What it gave for backward serves
/// forward as well.
[[nodiscard]] Accuracy check(BenchCase& bench, bool backward, const Expected& expected, Rule rule = Rule::strict);

} // namespace flashomp::bench
