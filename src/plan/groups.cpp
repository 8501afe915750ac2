#include "groups.hpp"

#include "option_list.hpp"

namespace flashomp {

namespace {

/// [batch, 1, head, depth] as [batch, head of its group, group, depth].
template <class View>
View heads_as_rows(View view, std::int64_t group)
{
    view.shape[1] = group;
    view.shape[2] /= group;
    view.strides[1] = view.strides[2];
    view.strides[2] *= group;
    return view;
}

} // namespace

Problem with_groups_as_rows(Problem problem)
{
    const std::int64_t group = problem.heads_kv > 0 ? problem.heads_q / problem.heads_kv : 1;
    const bool is_packed = !problem.starts_q.empty();
    const Options& options = problem.options;
    const bool sees_all = options.causal != Causal::top_left && options.window.left < 0 && options.window.right < 0;
    const bool has_scales = problem.dtype == DType::float8_e4m3; // of each head
    if (has_scales || problem.is_backward || is_packed || problem.seqlen_q != 1 || group == 1 ||
        tells_heads_apart(options) || has_positions(options) || !sees_all || problem.lse.strides[1] != 1) {
        return problem;
    }
    problem.options.causal = Causal::none; // the last query sees all keys
    problem.heads_q = problem.heads_kv;
    problem.seqlen_q = group;
    problem.q = heads_as_rows(problem.q, group);
    problem.o = heads_as_rows(problem.o, group);
    problem.lse.shape[1] /= group; // [batch, head, 1] as [batch, group, head of its group]
    problem.lse.shape[2] = group;
    problem.lse.strides[2] = 1;
    problem.lse.strides[1] = group;
    return problem;
}

} // namespace flashomp
