#include "check_case.hpp"

#include "attention_inputs.hpp"
#include "attention_outputs.hpp"

#include "flashomp/error.hpp"

#include "accuracy.hpp"
#include "npy.hpp"
#include "option_list.hpp"
#include "reference.hpp"
#include "validate.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <utility>

#include <fmt/format.h>

namespace flashomp::cli {

namespace {

/// Everything that the reference computes for a case, by name.
std::map<std::string, std::vector<double>> reference_results(const Problem& forward, const Problem& backward,
                                                             reference::Rounding rounding)
{
    reference::ForwardResult outputs = reference::forward(forward, rounding);
    reference::BackwardResult gradients = reference::backward(backward, rounding);
    return {{"o", std::move(outputs.o)},          {"lse", std::move(outputs.lse)},
            {"dq", std::move(gradients.dq)},      {"dk", std::move(gradients.dk)},
            {"dv", std::move(gradients.dv)},      {"dbias", std::move(gradients.dbias)},
            {"dsink", std::move(gradients.dsink)}};
}

/// The same problem on the tensors as they are in the files, before any conversion.
Problem on_inputs(Problem problem, const AttentionInputs& exact)
{
    problem.q = exact.view("q");
    problem.k = exact.view("k");
    problem.v = exact.view("v");
    problem.dout = exact.view("do");
    return problem;
}

/// What the results of a case are judged by.
struct Baselines {
    std::map<std::string, std::vector<double>> oracle, naive;
    std::map<std::string, std::vector<double>> naive_float32; ///< of LSE and dsink, and of dbias where it is float32
    std::vector<std::uint8_t> few_keys;
};

Baselines baselines_of(const Problem& forward, const Problem& backward, const AttentionInputs& exact, DType dtype,
                       bool repairs_rows)
{
    Baselines baselines;
    baselines.naive = reference_results(forward, backward, reference::rounding_of(dtype));
    baselines.naive_float32 =
        dtype == DType::float32 ? baselines.naive : reference_results(forward, backward, reference::Rounding::float32);
    if (!repairs_rows) {
        for (const char* const name : {"dbias", "dsink"}) {
            baselines.naive_float32[name] = baselines.naive[name];
        }
    }
    baselines.oracle =
        reference_results(on_inputs(forward, exact), on_inputs(backward, exact), reference::Rounding::none);
    baselines.few_keys = reference::rows_of_few_keys(forward);
    return baselines;
}

/// Compares one result with its expected tensor. How far off the naive baseline is is measured against our own oracle
/// and not against the expected values: a mistake that backend and reference share must not widen its own bound.
Comparison compare(const CheckCase& check_case, const std::string& name, const io::HostTensor& computed,
                   const Baselines& baselines)
{
    static const std::map<std::string, reference::Result> results{
        {"o", reference::Result::o},        {"lse", reference::Result::lse}, {"dq", reference::Result::dq},
        {"dk", reference::Result::dk},      {"dv", reference::Result::dv},   {"dbias", reference::Result::dbias},
        {"dsink", reference::Result::dsink}};
    const std::filesystem::path& file = check_case.expected.at(name);
    const io::HostTensor tensor = io::read_npy(file);
    if (tensor.shape() != computed.shape()) {
        throw Error(fmt::format("{}: holds {}; {} of this case is {}.", file.string(),
                                io::describe(tensor.dtype(), tensor.shape()), name,
                                io::describe(computed.dtype(), computed.shape())));
    }
    const std::vector<double>& oracle = baselines.oracle.at(name);
    std::vector<double> naive =
        (computed.dtype() == DType::float32 ? baselines.naive_float32 : baselines.naive).at(name);
    const std::vector<double> expected = io::doubles(tensor);
    for (std::size_t n = 0; n < naive.size(); ++n) {
        const double error = naive[n] - oracle[n];
        naive[n] = std::isfinite(error) ? expected[n] + error : expected[n];
    }
    const reference::Judged judged =
        reference::judged_as(results.at(name), computed.dtype(), computed.shape(), baselines.few_keys,
                             reference::largest_of(baselines.oracle.at("lse")));
    return {name, reference::judge(judged, io::doubles(computed), expected, naive)};
}

void run_and_compare(const CheckCase& check_case, const AttentionInputs& inputs, const AttentionInputs& exact,
                     const Options& options, const Runner& runner, CaseResult& result)
{
    AttentionOutputs outputs(Layout::bshd); // NaN until somebody writes them
    ForwardArgs args;
    args.q = inputs.view("q");
    args.k = inputs.view("k");
    args.v = inputs.view("v");
    args.o = outputs.add_o(args.q, args.v);
    args.lse = outputs.add_lse(args.q);
    const Problem problem = validate_forward(args, options);
    result.forward = runner.forward(args, options);

    BackwardArgs back;
    back.q = args.q;
    back.k = args.k;
    back.v = args.v;
    back.o = args.o;
    back.lse = args.lse;
    back.dout = inputs.view("do");
    back.dq = outputs.add_like("dq", back.q);
    back.dk = outputs.add_like("dk", back.k);
    back.dv = outputs.add_like("dv", back.v);
    for (const TensorOption& option : tensor_options) {
        if (option.gradient && check_case.expected.contains(option.gradient.name)) {
            back.*option.gradient.given = outputs.add_plain(option.gradient.name, options.*option.member);
        }
    }
    const Problem backward_problem = validate_backward(back, options);
    result.backward = runner.backward(back, options);

    runner.together([&] {
        const Baselines baselines = baselines_of(problem, backward_problem, exact, result.dtype, runner.repairs_rows);
        for (const auto& [name, tensor] : outputs.tensors()) {
            result.comparisons.push_back(compare(check_case, name, tensor, baselines));
        }
    });
}

} // namespace

const Comparison* CaseResult::find(const std::string& result) const
{
    const auto found = std::find_if(comparisons.begin(), comparisons.end(),
                                    [&](const Comparison& comparison) { return comparison.name == result; });
    return found == comparisons.end() ? nullptr : &*found;
}

CaseResult run_case(const CheckCase& check_case, const RunFlags& run, const Runner& runner)
{
    CaseResult result;
    result.name = check_case.name;
    result.dtype = run.dtype.value_or(DType::float32);
    InputFiles files;
    files.npy = check_case.inputs;
    files.dtype = result.dtype;
    files.backward = true;
    std::optional<AttentionInputs> inputs, exact;
    runner.together([&] {
        inputs.emplace(files);
        files.dtype.reset();
        exact.emplace(files);
    });
    const Options options = inputs->with_tensors(call_options(check_case.options, run));
    try {
        run_and_compare(check_case, *inputs, *exact, options, runner, result);
        const bool passed = std::all_of(result.comparisons.begin(), result.comparisons.end(),
                                        [](const Comparison& comparison) { return comparison.passed(); });
        result.outcome = passed ? Outcome::passed : Outcome::failed;
    } catch (const NotBuilt& missing) {
        result.reason = missing.what();
    } catch (const Error& error) {
        throw Error(fmt::format("case {}: {}", check_case.name, error.what()));
    } catch (const RunFailure& failure) {
        throw RunFailure(fmt::format("case {}: {}", check_case.name, failure.what()));
    }
    return result;
}

} // namespace flashomp::cli
