// Are the results right? Asked before anything is timed.
#pragma once

#include "bench_case.hpp"
#include "reference.hpp"

#include <optional>
#include <string>

namespace flashomp::bench {

/// Largest errors of what was compared against the float64 reference, and what the tolerance rule allows
/// (reference/accuracy.hpp).
struct Accuracy {
    double o = 0, lse = 0, dq = 0, dk = 0, dv = 0;
    double bound_o = 0, bound_lse = 0, bound_gradient = 0;
    /// float8_e4m3: the largest error of o, and the root of the mean square relative to that of o, beside what the
    /// inputs give before they are rounded to 8 bits.
    std::optional<double> unrounded_o, unrounded_rms;
    bool has_gradients = false;
    bool has_dkv = false;
    std::string compared; ///< what: "all rows of 1 of 32 heads of 1 of 8 sequences"

    [[nodiscard]] bool is_good() const;

    /// "error of o 1e-2 (bound 1e-3)" and so on, for a result that is not.
    [[nodiscard]] std::string text() const;
};

/// What the results of a case are compared with: float64, and the same with the element type's rounding.
struct Expected {
    reference::Evaluation exact, naive; ///< gradients for backward only
};

[[nodiscard]] Expected expected(BenchCase& bench, bool backward);

/// Compares the last results of `bench` for the last sequence and key head and its query heads. Where that would take
/// too long (group·Nq·Nk over 2^22), only the last head's last 128 queries: then dk and dv, which sum over all queries,
/// are not compared.
[[nodiscard]] Accuracy check(BenchCase& bench, bool backward);

/// The same with what expected() gave for the case, which takes most of the time.
[[nodiscard]] Accuracy check(BenchCase& bench, bool backward, const Expected& expected);

} // namespace flashomp::bench
