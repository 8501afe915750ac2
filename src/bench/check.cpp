#include "check.hpp"

#include "memory.hpp"
#include "validate.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <set>
#include <type_traits>

#include <fmt/format.h>

namespace flashomp::bench {

namespace {

using reference::Chosen;
using reference::ChosenValues;
using reference::Result;
using Values = std::vector<double>;

/// The case as a problem of host tensors, with the results as they are now.
Problem problem_of(BenchCase& bench, bool backward)
{
    const Options options = bench.options_on_host();
    const BackwardArgs args = bench.on_host();
    if (backward) {
        return validate_backward(args, options);
    }
    // Only read, but the arguments of a forward call are where the results are.
    return validate_forward({args.q, args.k, args.v, as_result(args.o), as_result(args.lse)}, options);
}

/// What of a span is looked at: one tensor.
using Rows = Values ChosenValues::Rows::*;
using Keys = Values ChosenValues::Keys::*;

const Values& values_of(const ChosenValues& part, std::size_t span, Rows tensor)
{
    return part.rows.at(span).*tensor;
}
const Values& values_of(const ChosenValues& part, std::size_t span, Keys tensor)
{
    return part.keys.at(span).*tensor;
}
const std::vector<reference::Span>& spans_of(const Chosen& part, Rows /*tensor*/)
{
    return part.rows;
}
const std::vector<reference::Span>& spans_of(const Chosen& part, Keys /*tensor*/)
{
    return part.keys;
}

/// One span of a tensor, of all parts that have as many spans: [heads of all parts, rows or keys, width].
struct Span {
    Values actual, exact, naive;
    std::vector<std::uint8_t> few_keys; ///< for each row; of keys one for each part
    std::int64_t rows = -1;             ///< of each head; 0 where heads have different numbers of them
};

void append(Values& all, const Values& more)
{
    all.insert(all.end(), more.begin(), more.end());
}

/// Compares one tensor of all parts, each span on its own over all parts that have it.
class Comparison {
public:
    Comparison(const Problem& problem, const std::vector<Chosen>& parts, const Expected& expected, Rule rule,
               Accuracy& accuracy)
        : problem_(problem), parts_(parts), exact_(expected.exact), rule_(rule), accuracy_(accuracy)
    {
        std::transform(parts.begin(), parts.end(), std::back_inserter(actual_),
                       [&](const Chosen& part) { return reference::results_of(problem, part); });
        for (const ChosenValues& part : exact_) {
            for (const ChosenValues::Rows& rows : part.rows) {
                largest_lse_ = std::max(largest_lse_, reference::largest_of(rows.lse));
            }
        }
    }

    [[nodiscard]] const std::vector<ChosenValues>& actual() const { return actual_; }

    /// Sets error and bound to the largest difference of the span that comes nearest to its bound, and tells the
    /// accuracy about every other limit.
    template <class Tensor>
    void compare(Result result, Tensor tensor, DType dtype, const std::vector<ChosenValues>& naive, double& error,
                 double& bound) const
    {
        // Of packed sequences a short one has one span, which is all of it, and a long one has several: judged apart.
        std::set<std::size_t> numbers_of_spans;
        for (const Chosen& part : parts_) {
            numbers_of_spans.insert(spans_of(part, tensor).size());
        }
        double worst = -1;
        for (const std::size_t spans : numbers_of_spans) {
            for (std::size_t i = 0; i < spans; ++i) {
                const reference::Verdict verdict = judged(result, dtype, span_of(i, spans, tensor, naive));
                accuracy_.take(reference::name_of(result), verdict);
                const reference::Limit& largest = verdict.largest();
                if (!(largest.value / largest.bound <= worst)) {
                    worst = largest.value / largest.bound;
                    error = largest.value;
                    bound = largest.bound;
                }
            }
        }
    }

private:
    template <class Tensor>
    [[nodiscard]] Span span_of(std::size_t index, std::size_t of, Tensor tensor,
                               const std::vector<ChosenValues>& naive) const
    {
        Span all;
        for (std::size_t i = 0; i < parts_.size(); ++i) {
            const std::vector<reference::Span>& spans = spans_of(parts_[i], tensor);
            if (spans.size() != of) {
                continue;
            }
            const reference::Span& span = spans[index];
            const Values& exact = values_of(exact_[i], index, tensor);
            append(all.actual, values_of(actual_.at(i), index, tensor));
            append(all.exact, exact);
            append(all.naive, values_of(naive.at(i), index, tensor));
            all.rows = all.rows == -1 || all.rows == span.count ? span.count : 0;
            if (std::is_same_v<Tensor, Rows>) {
                const std::vector<std::uint8_t> few =
                    reference::rows_of_few_keys(problem_, parts_[i].sequence, span.first, span.first + span.count);
                for (std::int64_t head = 0; head < problem_.heads_q / problem_.heads_kv; ++head) {
                    all.few_keys.insert(all.few_keys.end(), few.begin(), few.end());
                }
            } else { // a sum over rows, some of which may see few
                all.few_keys.push_back(sees_few(parts_[i]));
            }
        }
        return all;
    }

    /// Whether a row that is compared sees few keys: the first do, under a causal mask.
    [[nodiscard]] std::uint8_t sees_few(const Chosen& part) const
    {
        return std::any_of(part.rows.begin(), part.rows.end(), [&](const reference::Span& span) {
            const auto few = reference::rows_of_few_keys(problem_, part.sequence, span.first, span.first + span.count);
            return std::find(few.begin(), few.end(), 1) != few.end();
        });
    }

    [[nodiscard]] reference::Verdict judged(Result result, DType dtype, const Span& span) const
    {
        if (rule_ == Rule::wide && dtype != DType::float8_e4m3) {
            const bool is_output = result == Result::o || result == Result::lse;
            const double factor = is_output ? reference::output_factor : reference::gradient_factor;
            return {{{"largest difference", reference::max_error(span.actual, span.exact),
                      reference::tolerance(factor, reference::naive_error(span.naive, span.exact))}}};
        }
        reference::Judged how;
        how.result = result;
        how.dtype = dtype;
        how.row_elements = width_of(result);
        how.rows = result == Result::dbias ? 0 : span.rows; // as reference::judged_as() has it
        how.few_keys = span.few_keys;
        how.largest_lse = largest_lse_;
        return reference::judge(how, span.actual, span.exact, span.naive);
    }

    [[nodiscard]] std::int64_t width_of(Result result) const
    {
        switch (result) {
        case Result::lse:
        case Result::dbias:
            return 1;
        case Result::o:
        case Result::dv:
            return problem_.head_dim_v;
        default:
            return problem_.head_dim;
        }
    }

    const Problem& problem_;
    const std::vector<Chosen>& parts_;
    const std::vector<ChosenValues>& exact_;
    std::vector<ChosenValues> actual_;
    double largest_lse_ = 0;
    Rule rule_;
    Accuracy& accuracy_;
};

/// How far o is from what it would be with inputs of float32.
void compare_unrounded(BenchCase& bench, Problem problem, const std::vector<ChosenValues>& actual, Accuracy& result)
{
    const BenchCase::Unrounded& inputs = *bench.unrounded();
    problem.options.q_scale = problem.options.k_scale = problem.options.v_scale = {};
    problem.q = inputs.q.view();
    problem.k = inputs.k.view();
    problem.v = inputs.v.view();
    double differences = 0, values = 0, largest = 0;
    for (std::size_t i = 0; i < actual.size(); ++i) {
        const ChosenValues exact = reference::evaluate(problem, result.sample->parts.at(i));
        for (std::size_t span = 0; span < exact.rows.size(); ++span) {
            const Values& o = actual[i].rows.at(span).o;
            const Values& expected = exact.rows[span].o;
            largest = std::max(largest, reference::max_error(o, expected));
            for (std::size_t at = 0; at < o.size(); ++at) {
                differences += (o[at] - expected[at]) * (o[at] - expected[at]);
                values += expected[at] * expected[at];
            }
        }
    }
    result.unrounded_o = largest;
    result.unrounded_rms = values > 0 ? std::sqrt(differences / values) : 0;
}

} // namespace

void Accuracy::take(std::string_view result, const reference::Verdict& verdict)
{
    if (!verdict.passed()) {
        failures += fmt::format("{}{}: {}", failures.empty() ? "" : "; ", result, verdict.failures());
    }
    double& most = widest[std::string(result)];
    most = std::max(most, verdict.largest().bound);
    const reference::Limit& limit = verdict.nearest();
    const double share = limit.bound > 0 ? limit.value / limit.bound : (limit.value > 0 ? HUGE_VAL : 0.0);
    if (nearest.empty() || !(share <= nearest_share)) {
        nearest = fmt::format("{}, {}", result, limit.name);
        nearest_share = share;
    }
}

std::string Accuracy::text() const
{
    std::string text =
        fmt::format("errors: o {:.2e} (bound {:.2e}), LSE {:.2e} (bound {:.2e})", o, bound_o, lse, bound_lse);
    if (has_gradients) {
        text += fmt::format(", dq {:.2e} (bound {:.2e})", dq, bound_dq);
    }
    if (has_dbias) {
        text += fmt::format(", dbias {:.2e} (bound {:.2e})", dbias, bound_dbias);
    }
    if (has_gradients && has_dkv) {
        text += fmt::format(", dk {:.2e} (bound {:.2e}), dv {:.2e} (bound {:.2e})", dk, bound_dk, dv, bound_dv);
    }
    return failures.empty() ? text : fmt::format("{}; beyond its bound: {}", text, failures);
}

Expected expected(BenchCase& bench, bool backward)
{
    const Sample sample(bench.shape());
    const Problem problem = problem_of(bench, backward);
    const reference::Rounding rounding = reference::rounding_of(bench.dtype());
    Expected result;
    const ReusedMemory reused;
    for (const Chosen& part : sample.parts) {
        result.exact.push_back(reference::evaluate(problem, part));
        result.naive.push_back(reference::evaluate(problem, part, rounding));
        // Products of 8 bits cut their sums off, and what is rounded to float32 anyway needs no second baseline.
        if (bench.dtype() == DType::float8_e4m3 || bench.dtype() == DType::float32) {
            result.single.push_back(result.naive.back());
        } else {
            const Chosen rows{part.sequence, part.head_kv, part.rows, {}, false};
            result.single.push_back(reference::evaluate(problem, rows, reference::Rounding::float32));
        }
    }
    return result;
}

Accuracy check(BenchCase& bench, bool backward, const Expected& expected, Rule rule)
{
    Accuracy result;
    result.sample.emplace(bench.shape());
    const std::vector<Chosen>& parts = result.sample->parts;
    result.compared = result.sample->text(backward);
    const Problem problem = problem_of(bench, backward);
    // LSE of 8-bit operands: a tensor core cuts its sums off, so the mean of the errors is not 0.
    const DType dtype = bench.dtype();
    const Comparison comparison(problem, parts, expected, dtype == DType::float8_e4m3 ? Rule::wide : rule, result);
    comparison.compare(Result::o, &ChosenValues::Rows::o, dtype, expected.naive, result.o, result.bound_o);
    comparison.compare(Result::lse, &ChosenValues::Rows::lse, DType::float32, expected.single, result.lse,
                       result.bound_lse);
    if (!backward) {
        if (bench.unrounded() != nullptr) {
            compare_unrounded(bench, problem, comparison.actual(), result);
        }
        return result;
    }
    result.has_gradients = true;
    result.has_dkv = std::any_of(parts.begin(), parts.end(), [](const Chosen& part) { return !part.keys.empty(); });
    comparison.compare(Result::dq, &ChosenValues::Rows::dq, dtype, expected.naive, result.dq, result.bound_dq);
    if (bench.shape().dbias) {
        result.has_dbias = true;
        comparison.compare(Result::dbias, &ChosenValues::Rows::dbias, dtype, expected.naive, result.dbias,
                           result.bound_dbias);
    }
    comparison.compare(Result::dk, &ChosenValues::Keys::dk, dtype, expected.naive, result.dk, result.bound_dk);
    comparison.compare(Result::dv, &ChosenValues::Keys::dv, dtype, expected.naive, result.dv, result.bound_dv);
    return result;
}

Accuracy check(BenchCase& bench, bool backward)
{
    return check(bench, backward, expected(bench, backward));
}

} // namespace flashomp::bench
