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

/// Leaves of the keys those that the window of one query, the last one, lets it see: window.left of them before the
/// last one, and that one.
void take_window(Problem& problem)
{
    const std::int64_t left = problem.options.window.left;
    problem.options.window = {};
    if (left < 0 || left >= problem.seqlen_k) {
        return;
    }
    if (is_cache(problem)) { // whose lengths are not known here
        problem.newest_keys = left + 1;
        return;
    }
    problem.skipped_keys = problem.seqlen_k - (left + 1);
    problem.seqlen_k = left + 1;
    for (ConstTensorView* view : {&problem.k, &problem.v}) {
        skip_rows(*view, problem.skipped_keys);
        view->shape[1] = problem.seqlen_k;
    }
}

} // namespace

Problem with_groups_as_rows(Problem problem)
{
    const std::int64_t group = problem.heads_kv > 0 ? problem.heads_q / problem.heads_kv : 1;
    const bool is_packed = !problem.starts_q.empty();
    const Options& options = problem.options;
    const bool has_scales = problem.dtype == DType::float8_e4m3; // of each head
    if (has_scales || problem.is_backward || is_packed || problem.seqlen_q != 1 || tells_heads_apart(options) ||
        has_positions(options) || options.causal == Causal::top_left || problem.lse.strides[1] != 1) {
        return problem;
    }
    // Masks of keys count from the first key that a window hides.
    const bool has_window = options.window.left >= 0 && options.window.left < problem.seqlen_k - 1;
    if (has_window && (options.key_padding_mask || has_pair_mask(options))) {
        return problem;
    }
    take_window(problem);
    problem.rows_are_heads = true;
    problem.options.causal = Causal::none; // the last query sees all keys
    if (group == 1) {
        return problem;
    }
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
