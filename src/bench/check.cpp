#include "check.hpp"

#include "accuracy.hpp"
#include "memory.hpp"
#include "validate.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>

#include <fmt/format.h>

namespace flashomp::bench {

namespace {

using reference::Chosen;
using reference::ChosenValues;
using Values = std::vector<double>;

/// The case as a problem of host tensors, with the results as they are now.
Problem problem_of(BenchCase& bench, bool backward)
{
    Options options = bench.scales_on_host();
    options.scale = bench.options().scale;
    options.softcap = bench.options().softcap;
    options.causal = bench.options().causal;
    options.threads = bench.options().threads;
    options.cu_seqlens_q = bench.options().cu_seqlens_q; // of host memory
    options.cu_seqlens_k = bench.options().cu_seqlens_k;
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
std::size_t spans_of(const ChosenValues& part, Rows /*tensor*/)
{
    return part.rows.size();
}
std::size_t spans_of(const ChosenValues& part, Keys /*tensor*/)
{
    return part.keys.size();
}

/// Compares one tensor of all parts, each span on its own over all parts that have it.
class Comparison {
public:
    Comparison(const std::vector<ChosenValues>& actual, const std::vector<ChosenValues>& exact)
        : actual_(actual), exact_(exact)
    {
    }

    /// Sets error and bound of the span that comes nearest to its bound.
    template <class Tensor>
    void compare(Tensor tensor, double factor, const std::vector<ChosenValues>& naive, double& error,
                 double& bound) const
    {
        std::size_t spans = 0;
        for (const ChosenValues& part : exact_) {
            spans = std::max(spans, spans_of(part, tensor));
        }
        double worst = -1;
        for (std::size_t span = 0; span < spans; ++span) {
            double own = 0;
            double of_naive = 0;
            for (std::size_t i = 0; i < exact_.size(); ++i) {
                if (span < spans_of(exact_[i], tensor)) {
                    const Values& exact = values_of(exact_[i], span, tensor);
                    own = std::max(own, reference::max_error(values_of(actual_.at(i), span, tensor), exact));
                    of_naive = std::max(of_naive, reference::naive_error(values_of(naive.at(i), span, tensor), exact));
                }
            }
            const double allowed = reference::tolerance(factor, of_naive);
            if (own / allowed > worst) {
                worst = own / allowed;
                error = own;
                bound = allowed;
            }
        }
    }

private:
    const std::vector<ChosenValues>& actual_;
    const std::vector<ChosenValues>& exact_;
};

/// How far o is from what it would be with inputs of float32.
void compare_unrounded(BenchCase& bench, Problem problem, const std::vector<ChosenValues>& actual, Accuracy& result)
{
    const BenchCase::Unrounded& inputs = *bench.unrounded();
    problem.q_scale = problem.k_scale = problem.v_scale = {};
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

bool Accuracy::is_good() const
{
    const bool gradients = !has_gradients || (dq <= bound_dq && (!has_dkv || (dk <= bound_dk && dv <= bound_dv)));
    return o <= bound_o && lse <= bound_lse && gradients;
}

std::string Accuracy::text() const
{
    std::string text =
        fmt::format("errors: o {:.2e} (bound {:.2e}), LSE {:.2e} (bound {:.2e})", o, bound_o, lse, bound_lse);
    if (has_gradients) {
        text += fmt::format(", dq {:.2e} (bound {:.2e})", dq, bound_dq);
    }
    if (has_gradients && has_dkv) {
        text += fmt::format(", dk {:.2e} (bound {:.2e}), dv {:.2e} (bound {:.2e})", dk, bound_dk, dv, bound_dv);
    }
    return text;
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
            const Chosen rows{part.sequence, part.head_kv, part.rows, {}};
            result.single.push_back(reference::evaluate(problem, rows, reference::Rounding::float32));
        }
    }
    return result;
}

Accuracy check(BenchCase& bench, bool backward, const Expected& expected)
{
    Accuracy result;
    result.sample.emplace(bench.shape());
    const Sample& sample = *result.sample;
    result.compared = sample.text(backward);
    const Problem problem = problem_of(bench, backward);
    std::vector<ChosenValues> actual;
    std::transform(sample.parts.begin(), sample.parts.end(), std::back_inserter(actual),
                   [&](const Chosen& part) { return reference::results_of(problem, part); });
    const Comparison comparison(actual, expected.exact);
    using reference::gradient_factor;
    using reference::output_factor;
    comparison.compare(&ChosenValues::Rows::o, output_factor, expected.naive, result.o, result.bound_o);
    comparison.compare(&ChosenValues::Rows::lse, output_factor, expected.single, result.lse, result.bound_lse);
    if (!backward) {
        if (bench.unrounded() != nullptr) {
            compare_unrounded(bench, problem, actual, result);
        }
        return result;
    }
    result.has_gradients = true;
    result.has_dkv =
        std::any_of(sample.parts.begin(), sample.parts.end(), [](const Chosen& part) { return !part.keys.empty(); });
    comparison.compare(&ChosenValues::Rows::dq, gradient_factor, expected.naive, result.dq, result.bound_dq);
    comparison.compare(&ChosenValues::Keys::dk, gradient_factor, expected.naive, result.dk, result.bound_dk);
    comparison.compare(&ChosenValues::Keys::dv, gradient_factor, expected.naive, result.dv, result.bound_dv);
    return result;
}

Accuracy check(BenchCase& bench, bool backward)
{
    return check(bench, backward, expected(bench, backward));
}

} // namespace flashomp::bench
