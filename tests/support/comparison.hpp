// The tolerance rule of every parity test: no further from the float64 reference than 2 times (3 times for gradients)
// what standard attention in the same precision is, plus 1e-5.
#pragma once

#include "host_tensor.hpp"
#include "reference.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <gtest/gtest.h>
#include <limits>
#include <string>
#include <vector>

namespace flashomp::testing {

inline reference::Rounding rounding_of(DType dtype)
{
    switch (dtype) {
    case DType::bfloat16:
        return reference::Rounding::bfloat16;
    case DType::float16:
        return reference::Rounding::float16;
    default:
        return reference::Rounding::float32;
    }
}

inline std::vector<double> doubles(const io::HostTensor& tensor)
{
    const io::HostTensor wide = io::converted(tensor, DType::float64);
    const auto* data = static_cast<const double*>(wide.data());
    return {data, data + wide.elements()};
}

inline bool same_bits(const io::HostTensor& a, const io::HostTensor& b)
{
    return a.bytes() == b.bytes() &&
           (a.bytes() == 0 || std::memcmp(a.data(), b.data(), static_cast<std::size_t>(a.bytes())) == 0);
}

/// max |actual - expected|; infinity where one is not finite and they are not the same.
inline double max_error(const std::vector<double>& actual, const std::vector<double>& expected)
{
    double worst = actual.size() == expected.size() ? 0.0 : std::numeric_limits<double>::infinity();
    for (std::size_t i = 0; i < actual.size() && i < expected.size(); ++i) {
        const bool same = actual[i] == expected[i];
        const double error = std::abs(actual[i] - expected[i]);
        worst = same ? worst : std::max(worst, std::isnan(error) ? std::numeric_limits<double>::infinity() : error);
    }
    return worst;
}

/// One result tensor, judged.
struct Comparison {
    const char* name = "";
    double error = 0.0, naive_error = 0.0, bound = 0.0;

    [[nodiscard]] bool passed() const { return error <= bound; }
};

inline Comparison compared(const char* name, const std::vector<double>& actual, const std::vector<double>& exact,
                           const std::vector<double>& naive, double factor)
{
    const double naive_error = max_error(naive, exact);
    const double bound = std::isfinite(naive_error) ? factor * naive_error + 1e-5 : 0.0;
    return {name, max_error(actual, exact), naive_error, bound};
}

/// What results are judged by: the oracle, and standard attention in the tested precision.
struct Expected {
    reference::ForwardResult exact, naive;
    std::vector<double> naive_lse; ///< LSE is float32 in every dtype, so it is held to float32's naive error
    reference::BackwardResult gradients, naive_gradients;
};

inline Expected expected_of(Problem problem)
{
    problem.choice.threads = 1; // tests run side by side, so that the cores are busy anyway
    const reference::Rounding rounding = rounding_of(problem.dtype);
    Expected expected;
    expected.exact = reference::forward(problem);
    expected.naive = reference::forward(problem, rounding);
    expected.naive_lse = rounding == reference::Rounding::float32
                             ? expected.naive.lse
                             : reference::forward(problem, reference::Rounding::float32).lse;
    expected.gradients = reference::backward(problem);
    expected.naive_gradients = reference::backward(problem, rounding);
    return expected;
}

inline void expect_passed(const std::vector<Comparison>& comparisons)
{
    for (const Comparison& c : comparisons) {
        EXPECT_LE(c.error, c.bound) << c.name << " (naive error " << c.naive_error << ")";
    }
}

} // namespace flashomp::testing
