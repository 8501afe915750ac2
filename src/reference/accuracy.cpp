#include "accuracy.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

namespace flashomp::reference {

namespace {

constexpr double slack = 1e-5; // where the baseline happens to be exact

/// The largest difference; `misplaced` stands for that of a value that is not finite and not the same.
double largest_difference(const std::vector<double>& a, const std::vector<double>& b, double misplaced)
{
    double largest = a.size() == b.size() ? 0.0 : std::numeric_limits<double>::infinity();
    for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
        if (a[i] != b[i]) {
            const double difference = std::abs(a[i] - b[i]);
            largest = std::max(largest, std::isfinite(difference) ? difference : misplaced);
        }
    }
    return largest;
}

} // namespace

Rounding rounding_of(DType dtype)
{
    switch (dtype) {
    case DType::float8_e4m3:
        return Rounding::float8_e4m3;
    case DType::bfloat16:
        return Rounding::bfloat16;
    case DType::float16:
        return Rounding::float16;
    default:
        return Rounding::float32;
    }
}

double max_error(const std::vector<double>& actual, const std::vector<double>& expected)
{
    return largest_difference(actual, expected, std::numeric_limits<double>::infinity());
}

double naive_error(const std::vector<double>& naive, const std::vector<double>& exact)
{
    return largest_difference(naive, exact, 0.0);
}

double tolerance(double factor, double naive_error)
{
    return factor * naive_error + slack;
}

} // namespace flashomp::reference
