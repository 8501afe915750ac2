// Every tensor of a problem, with the name that messages use for it.
#pragma once

#include "option_list.hpp"

namespace flashomp {

/// Calls f(name, view) for each tensor that the call reads; absent ones have rank 0. Of a problem that is not const f
/// may change the views.
template <class SomeProblem, class F>
void each_input(SomeProblem& problem, F f)
{
    f("q", problem.q);
    f("k", problem.k);
    f("v", problem.v);
    for (const TensorOption& option : tensor_options) {
        f(option.name, problem.options.*option.member);
    }
    if (problem.is_backward) {
        f("o", problem.o);
        f("lse", problem.lse);
        f("dout", problem.dout);
    }
}

/// The same for each tensor that the call writes.
template <class SomeProblem, class F>
void each_output(SomeProblem& problem, F f)
{
    if (!problem.is_backward) {
        f("o", problem.o);
        f("lse", problem.lse);
        return;
    }
    f("dq", problem.dq);
    f("dk", problem.dk);
    f("dv", problem.dv);
    for (const TensorOption& option : tensor_options) {
        if (option.gradient) {
            f(option.gradient.name, problem.*option.gradient.kept);
        }
    }
}

template <class SomeProblem, class F>
void each_tensor(SomeProblem& problem, F f)
{
    each_input(problem, f);
    each_output(problem, f);
}

} // namespace flashomp
