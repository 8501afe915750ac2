// Calls of the C interface that run at once.
#include "arguments.hpp"
#include "lent_workspace.hpp"
#include "options.hpp"
#include "status.hpp"

#include "prepared_call.hpp"
#include "validate.hpp"

#include <chrono>

namespace flashomp::capi {

namespace {

using Clock = std::chrono::steady_clock;

Report run(const Call<ForwardArgs>& call)
{
    return forward(call.args, call.options);
}

Report run(const Call<BackwardArgs>& call)
{
    return backward(call.args, call.options);
}

Problem validated(const Call<ForwardArgs>& call)
{
    return validate_forward(call.args, call.options);
}

Problem validated(const Call<BackwardArgs>& call)
{
    return validate_backward(call.args, call.options);
}

/// The call on a workspace of the caller's allocator.
template <class Args>
Report run_with(const flashomp_allocator& allocator, const Call<Args>& call)
{
    const Problem problem = validated(call);
    const auto start = Clock::now();
    PreparedCall prepared(problem, true);
    LentWorkspace workspace(allocator, prepared.workspace_bytes(), prepared.space(), problem);
    Report report = prepared.report(prepared.run(problem, workspace.data(), problem.options.stream.value_or(nullptr)));
    workspace.give_back();
    report.seconds = std::chrono::duration<double>(Clock::now() - start).count();
    return report;
}

template <class CArgs>
flashomp_status guarded_run(const CArgs* args, const flashomp_options* options, flashomp_report* report)
{
    return guarded([&] {
        check_report(report);
        const auto call = call_of(args, options);
        const auto allocator = allocator_of(options);
        const Report done = allocator ? run_with(*allocator, call) : run(call);
        if (report != nullptr) {
            write_report(report, done);
        }
    });
}

} // namespace

} // namespace flashomp::capi

using namespace flashomp::capi;

flashomp_status flashomp_forward(const flashomp_forward_args* args, const flashomp_options* options,
                                 flashomp_report* report)
{
    return guarded_run(args, options, report);
}

flashomp_status flashomp_backward(const flashomp_backward_args* args, const flashomp_options* options,
                                  flashomp_report* report)
{
    return guarded_run(args, options, report);
}

flashomp_status flashomp_append(const flashomp_append_args* args, const flashomp_options* options,
                                flashomp_report* report)
{
    return guarded([&] {
        check_report(report);
        const Call<flashomp::AppendArgs> call = call_of(args, options);
        const flashomp::Report done = flashomp::append(call.args, call.options);
        if (report != nullptr) {
            write_report(report, done);
        }
    });
}

flashomp_status flashomp_merge(const flashomp_tensor* o_a, const flashomp_tensor* lse_a, const flashomp_tensor* o_b,
                               const flashomp_tensor* lse_b, const flashomp_tensor* o, const flashomp_tensor* lse,
                               const flashomp_options* options, flashomp_report* report)
{
    return guarded([&] {
        check_report(report);
        const flashomp_options given = read_options(options);
        Views views(managed_is_gpus(given));
        const flashomp::Partial a{views("a.o", o_a), views("a.lse", lse_a)};
        const flashomp::Partial b{views("b.o", o_b), views("b.lse", lse_b)};
        const flashomp::TensorView merged = views("o", o);
        const flashomp::TensorView merged_lse = views("lse", lse);
        const flashomp::Report done = flashomp::merge(a, b, merged, merged_lse, options_of(given, views));
        if (report != nullptr) {
            write_report(report, done);
        }
    });
}

flashomp_status flashomp_dropout_mask(double probability, uint64_t seed, uint64_t offset, const flashomp_tensor* mask)
{
    return guarded([&] {
        Views views(false);
        flashomp::dropout_mask({probability, seed, offset}, views("mask", mask));
    });
}
