// The tolerance rule, by which tests, check, bench and tune judge results. It is that of FlashAttention-2's own tests,
//     max|result - exact| <= factor · max|naive - exact| + slack,
// made tighter, and joined by limits on what a largest difference does not show: the root of the mean square, a common
// factor, the mean, and each of these in blocks of rows, so that early rows of a causal mask do not excuse late ones.
// exact is the float64 reference, naive is standard attention that rounds to the result's dtype after each operation.
// accuracy.cpp has the numbers and why they are what they are.
#pragma once

#include "reference.hpp"

#include <cstdint>
#include <string>
#include <string_view>
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

/// What FlashAttention-2's rule allows: of yardsticks and of 8 bits. judge() is stricter.
[[nodiscard]] double tolerance(double factor, double naive_error);

enum class Result : std::uint8_t { o, lse, dq, dk, dv, dbias, dsink };

/// "o", "lse", ...
[[nodiscard]] std::string_view name_of(Result result);

/// One property of a result's errors, and what it may be.
struct Limit {
    const char* name = ""; ///< "largest difference", ...
    double value = 0.0, bound = 0.0;

    [[nodiscard]] bool passed() const { return value <= bound; } // a NaN fails
};

/// A result, judged.
struct Verdict {
    std::vector<Limit> limits; ///< the first is that of the largest difference

    [[nodiscard]] bool passed() const;
    [[nodiscard]] const Limit& largest() const { return limits.front(); }

    /// The limit that failed, or is nearest to failing.
    [[nodiscard]] const Limit& nearest() const;

    /// "mean 1.2e-3 > 4.0e-4, root mean square ..." of what failed.
    [[nodiscard]] std::string failures() const;
};

/// What a result is judged by, besides its values.
struct Judged {
    Result result = Result::o;
    DType dtype = DType::float32;       ///< of the result: the naive baseline must be of this one
    std::int64_t row_elements = 1;      ///< consecutive elements that belong to one row
    std::int64_t rows = 0;              ///< consecutive rows that belong to one sequence; 0: no blocks of rows
    std::vector<std::uint8_t> few_keys; ///< see rows_of_few_keys()
    double largest_lse = 0.0;           ///< see largest_of()
};

/// For each query row, batch entry after batch entry, whether it sees some keys but fewer than 16. There the rounding
/// of O, which D = Σ dO∘O takes over, counts most, and naive attention, which takes D from P, has none of it.
[[nodiscard]] std::vector<std::uint8_t> rows_of_few_keys(const Problem& problem);

/// The same of rows [first, last) of one sequence.
[[nodiscard]] std::vector<std::uint8_t> rows_of_few_keys(const Problem& problem, std::int64_t sequence,
                                                         std::int64_t first, std::int64_t last);

/// max |x| of the numbers that are finite. Of LSE it says how large scores are, and so how much of them float32 keeps.
[[nodiscard]] double largest_of(const std::vector<double>& values);

/// How a contiguous result of this shape is judged, of one of the layouts of ForwardResult and BackwardResult.
[[nodiscard]] Judged judged_as(Result result, DType dtype, const std::vector<std::int64_t>& shape,
                               std::vector<std::uint8_t> few_keys, double largest_lse);

[[nodiscard]] Verdict judge(const Judged& judged, const std::vector<double>& actual, const std::vector<double>& exact,
                            const std::vector<double>& naive);

} // namespace flashomp::reference
