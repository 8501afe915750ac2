// The tolerance rule (accuracy.hpp) as every parity test applies it.
#pragma once

#include "accuracy.hpp"
#include "host_tensor.hpp"
#include "reference.hpp"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <gtest/gtest.h>
#include <string>
#include <utility>
#include <vector>

namespace flashomp::testing {

using io::doubles;
using reference::max_error;

inline bool same_bits(const io::HostTensor& a, const io::HostTensor& b)
{
    return a.bytes() == b.bytes() &&
           (a.bytes() == 0 || std::memcmp(a.data(), b.data(), static_cast<std::size_t>(a.bytes())) == 0);
}

/// One result tensor, judged.
struct Comparison {
    const char* name = "";
    double error = 0.0, naive_error = 0.0, bound = 0.0; ///< of the largest difference
    std::string failures = {};                          ///< of other limits too

    [[nodiscard]] bool passed() const { return error <= bound && failures.empty(); }
};

/// By FlashAttention-2's rule alone: for 8-bit inputs.
inline Comparison compared(const char* name, const std::vector<double>& actual, const std::vector<double>& exact,
                           const std::vector<double>& naive, double factor)
{
    const double naive_error = reference::naive_error(naive, exact);
    return {name, max_error(actual, exact), naive_error, reference::tolerance(factor, naive_error)};
}

/// By all limits of accuracy.hpp.
inline Comparison compared(const char* name, const reference::Judged& judged, const std::vector<double>& actual,
                           const std::vector<double>& exact, const std::vector<double>& naive)
{
    const reference::Verdict verdict = reference::judge(judged, actual, exact, naive);
    return {name, verdict.largest().value, reference::naive_error(naive, exact), verdict.largest().bound,
            verdict.failures()};
}

/// What results are judged by: the oracle, and standard attention in the tested precision.
struct Expected {
    reference::ForwardResult exact, naive;
    std::vector<double> naive_lse; ///< LSE is float32 in every dtype, so it is held to float32's naive error
    reference::BackwardResult gradients, naive_gradients;
    std::vector<double> float32_dbias, float32_dsink; ///< naive in float32, as dsink always is and dbias may be
    std::vector<std::uint8_t> few_keys = {};          ///< reference::rows_of_few_keys()
};

inline Expected expected_of(Problem problem)
{
    problem.options.threads = 1; // tests run side by side, so that the cores are busy anyway
    const reference::Rounding rounding = reference::rounding_of(problem.dtype);
    reference::Evaluation exact = reference::evaluate(problem);
    reference::Evaluation naive = reference::evaluate(problem, rounding);
    Expected expected;
    if (rounding == reference::Rounding::float32) {
        expected.naive_lse = naive.outputs.lse;
        expected.float32_dbias = naive.gradients.dbias;
        expected.float32_dsink = naive.gradients.dsink;
    } else if (problem.options.bias || problem.options.sink) {
        reference::Evaluation float32 = reference::evaluate(problem, reference::Rounding::float32);
        expected.naive_lse = std::move(float32.outputs.lse);
        expected.float32_dbias = std::move(float32.gradients.dbias);
        expected.float32_dsink = std::move(float32.gradients.dsink);
    } else {
        expected.naive_lse = reference::forward(problem, reference::Rounding::float32).lse;
    }
    expected.exact = std::move(exact.outputs);
    expected.gradients = std::move(exact.gradients);
    expected.naive = std::move(naive.outputs);
    expected.naive_gradients = std::move(naive.gradients);
    expected.few_keys = reference::rows_of_few_keys(problem);
    return expected;
}

inline void expect_passed(const std::vector<Comparison>& comparisons)
{
    for (const Comparison& c : comparisons) {
        EXPECT_TRUE(c.passed()) << c.name << ": error " << c.error << ", bound " << c.bound << " (naive error "
                                << c.naive_error << "); failed: " << c.failures;
    }
}

} // namespace flashomp::testing
