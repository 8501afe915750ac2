// The tolerance rule of FlashAttention-2's own tests, which everything that judges a result uses:
//     max|result - exact| <= factor · max|naive - exact| + 1e-5
// exact is the float64 reference, naive is standard attention that rounds to the result's dtype after each operation.
#pragma once

#include "reference.hpp"

#include <vector>

namespace flashomp::reference {

inline constexpr double output_factor = 2.0; ///< of o and LSE
inline constexpr double gradient_factor = 3.0;

/// The naive baseline of a dtype.
[[nodiscard]] Rounding rounding_of(DType dtype);

/// max |actual - expected|. An infinity matches itself; any other value that is not finite, in either, is infinitely
/// far off, and so is a result of another size.
[[nodiscard]] double max_error(const std::vector<double>& actual, const std::vector<double>& expected);

/// The same for the naive baseline, without the elements that are not finite: an overflow there must not excuse one in
/// the result.
[[nodiscard]] double naive_error(const std::vector<double>& naive, const std::vector<double>& exact);

/// What the rule allows.
[[nodiscard]] double tolerance(double factor, double naive_error);

} // namespace flashomp::reference
