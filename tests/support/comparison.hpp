// The tolerance rule (accuracy.hpp) as every parity test applies it.
#pragma once

#include "accuracy.hpp"
#include "host_tensor.hpp"
#include "reference.hpp"

#include <cstddef>
#include <cstring>
#include <gtest/gtest.h>
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
    double error = 0.0, naive_error = 0.0, bound = 0.0;

    [[nodiscard]] bool passed() const { return error <= bound; }
};

inline Comparison compared(const char* name, const std::vector<double>& actual, const std::vector<double>& exact,
                           const std::vector<double>& naive, double factor)
{
    const double naive_error = reference::naive_error(naive, exact);
    return {name, max_error(actual, exact), naive_error, reference::tolerance(factor, naive_error)};
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
    const reference::Rounding rounding = reference::rounding_of(problem.dtype);
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
