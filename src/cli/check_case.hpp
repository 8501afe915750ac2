// One case of `flashomp check`: forward and backward, compared with the expected tensors by the tolerance rule
// (accuracy.hpp).
#pragma once

#include "attention_options.hpp"
#include "check_cases.hpp"
#include "runner.hpp"

#include "flashomp/attention.hpp"

#include "accuracy.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace flashomp::cli {

/// How far one result is from what it should be.
struct Comparison {
    std::string name;           ///< o, lse, dq, ...
    reference::Verdict verdict; ///< its first limit is that of the largest difference

    /// The largest difference; infinite where a NaN or an infinity is out of place.
    [[nodiscard]] double error() const { return verdict.largest().value; }
    [[nodiscard]] double bound() const { return verdict.largest().bound; }
    [[nodiscard]] bool passed() const { return verdict.passed(); }
};

enum class Outcome : std::uint8_t { passed, failed, skipped };

struct CaseResult {
    std::string name;
    Outcome outcome = Outcome::skipped;
    std::string reason; ///< why it was skipped
    DType dtype = DType::float32;
    std::vector<Comparison> comparisons;
    CallReport forward, backward;

    /// Null unless the case has this result.
    [[nodiscard]] const Comparison* find(const std::string& result) const;
    [[nodiscard]] bool ran() const { return outcome != Outcome::skipped; }
    [[nodiscard]] bool on_device() const { return forward.report.on_device && backward.report.on_device; }
};

/// Runs a case in run.dtype (default float32). A case that this build cannot do yet is skipped; other bad input throws
/// Error.
[[nodiscard]] CaseResult run_case(const CheckCase& check_case, const RunFlags& run, const Runner& runner);

} // namespace flashomp::cli
