#include "chosen.hpp"

#include "cached_rows.hpp"
#include "host_threads.hpp"
#include "standard_attention.hpp"

#include <algorithm>
#include <cstddef>
#include <exception>
#include <utility>

namespace flashomp::reference {

namespace {

/// Rows of one head as a matrix, from the sequence's row `first` on. `scale` is what elements are multiplied with.
template <class A>
Matrix<A> rows_of(const ConstTensorView& view, const Sequence& sequence, std::int64_t sequence_start, Span span,
                  std::int64_t head, double scale = 1.0)
{
    const bool packed = view.rank == 3;
    const std::size_t axis = packed ? 0 : 1; // rows, then heads, then head_dim
    const std::int64_t start = (packed ? sequence_start : sequence.batch) * view.strides[0] +
                               span.first * view.strides.at(axis) + head * view.strides.at(axis + 1);
    return Matrix<A>::NullaryExpr(span.count, view.shape.at(axis + 2), [&](Eigen::Index i, Eigen::Index c) {
        const std::int64_t at = start + i * view.strides.at(axis) + c * view.strides.at(axis + 2);
        return A::round(static_cast<typename A::Scalar>(read_element(view, at) * scale));
    });
}

/// The keys and values of a group, and the query rows of its heads as they are asked for.
template <class A>
struct Group {
    Group(const Problem& of, const Chosen& chosen)
        : problem(of), sequence(sequence_of(of, chosen.sequence)), head_kv(chosen.head_kv),
          heads(of.heads_q / of.heads_kv)
    {
        if (is_cache(of)) { // in forward alone
            k = load_cached<A>(of, of.k, of.options.k_scale, sequence, head_kv);
            v = load_cached<A>(of, of.v, of.options.v_scale, sequence, head_kv);
            return;
        }
        const Head any = head(0);
        const Span all{0, sequence.length_k};
        k = rows_of<A>(of.k, sequence, sequence.first_k, all, head_kv, any.scale(of.options.k_scale, head_kv));
        v = rows_of<A>(of.v, sequence, sequence.first_k, all, head_kv, any.scale(of.options.v_scale, head_kv));
    }

    [[nodiscard]] Head head(std::int64_t member) const { return {problem, sequence, head_kv * heads + member}; }

    [[nodiscard]] Matrix<A> q(const Head& of, Span span) const
    {
        return rows_of<A>(problem.q, sequence, sequence.first_q, span, of.index,
                          of.scale(problem.options.q_scale, of.index));
    }
    [[nodiscard]] Matrix<A> dout(const Head& of, Span span) const
    {
        return rows_of<A>(problem.dout, sequence, sequence.first_q, span, of.index);
    }

    const Problem& problem;
    Sequence sequence;
    std::int64_t head_kv = 0, heads = 1;
    Matrix<A> k, v;
};

/// Some rows of one member of a group.
struct Task {
    std::int64_t member = 0;
    std::size_t span = 0; ///< of Chosen::rows
    Span rows;
};

/// `span` in blocks whose matrices of scores fit in a core's cache, but with enough rows for fast products.
void add_blocks(std::vector<Task>& tasks, std::int64_t member, std::size_t index, Span span, std::int64_t keys)
{
    constexpr std::int64_t scores = std::int64_t{1} << 17;
    constexpr std::int64_t fewest = 32;
    const std::int64_t most = std::max(fewest, scores / std::max(std::int64_t{1}, keys));
    for (std::int64_t at = 0; at < span.count; at += most) {
        tasks.push_back({member, index, {span.first + at, std::min(most, span.count - at)}});
    }
}

/// compute(task) in parallel and collect(task, result) one at a time in the tasks' order, so that sums have the same
/// bits on every run.
template <class Compute, class Collect>
void for_each_task(const Problem& problem, const std::vector<Task>& tasks, Compute compute, Collect collect)
{
    const int threads = host_threads(problem.options.threads, static_cast<std::int64_t>(tasks.size()));
    std::exception_ptr failure; // exceptions must not leave a parallel region; only the ordered part touches this
#pragma omp parallel for ordered schedule(static, 1) num_threads(threads)
    for (const Task& task : tasks) {
        decltype(compute(task)) result;
        std::exception_ptr mine;
        try {
            result = compute(task);
        } catch (...) {
            mine = std::current_exception();
        }
#pragma omp ordered
        {
            if (!mine) {
                collect(task, result);
            } else if (!failure) {
                failure = std::exchange(mine, nullptr);
            }
        }
    }
    if (failure) {
        std::rethrow_exception(failure);
    }
}

template <class Values>
void append(std::vector<double>& to, const Values& values)
{
    for (Eigen::Index i = 0; i < values.rows(); ++i) {
        for (Eigen::Index c = 0; c < values.cols(); ++c) {
            to.push_back(static_cast<double>(values(i, c)));
        }
    }
}

template <class A>
struct RowsResult {
    Matrix<A> o, dq, dbias;
    Column<A> lse;
};

template <class A>
std::vector<ChosenValues::Rows> evaluate_rows(const Group<A>& group, const std::vector<Span>& spans, bool has_dbias)
{
    std::vector<Task> tasks;
    for (std::size_t span = 0; span < spans.size(); ++span) {
        for (std::int64_t member = 0; member < group.heads; ++member) {
            add_blocks(tasks, member, span, spans[span], group.sequence.length_k);
        }
    }
    const auto compute = [&group, has_dbias](const Task& task) {
        const Head head = group.head(task.member);
        const Block block(head, task.rows.first, task.rows.count);
        const auto k = group.k.middleRows(block.first_column, block.columns);
        const auto v = group.v.middleRows(block.first_column, block.columns);
        const Matrix<A> q = group.q(head, task.rows);
        const Stored<A> stored = forward_block<A>(block, q, k, v);
        RowsResult<A> result{stored.o, {}, {}, stored.lse};
        if (group.problem.is_backward) {
            Gradients<A> gradients = backward_block<A>(block, stored, q, k, v, group.dout(head, task.rows));
            result.dq = std::move(gradients.dq);
            if (has_dbias) {
                result.dbias = Matrix<A>::Zero(task.rows.count, group.sequence.length_k);
                result.dbias.middleCols(block.first_column, block.columns) = gradients.ds;
            }
        }
        return result;
    };
    std::vector<ChosenValues::Rows> values(spans.size());
    for_each_task(group.problem, tasks, compute, [&values](const Task& task, const RowsResult<A>& result) {
        ChosenValues::Rows& of_span = values[task.span];
        append(of_span.o, result.o);
        append(of_span.lse, result.lse);
        append(of_span.dq, result.dq);
        append(of_span.dbias, result.dbias);
    });
    return values;
}

/// D of every row: in float64 as Σ do·o, of the o computed here, which spares a product; else by its definition, whose
/// roundings are the baseline's.
template <class A>
Column<A> row_terms(const Stored<A>& stored, const Part<A>& v, const Matrix<A>& dout)
{
    if constexpr (std::is_same_v<A, Native<double>>) {
        return dout.cwiseProduct(stored.o).rowwise().sum();
    } else {
        using Scalar = typename A::Scalar;
        Matrix<A> dp = stored.visible.select(rounded<A>(product_by_transposed<Scalar>(dout, v)), Scalar{0});
        if (stored.dropout.size() > 0) {
            dp = rounded<A>(dp.cwiseProduct(stored.dropout));
        }
        return rounded<A>(rounded<A>(stored.p.cwiseProduct(dp)).rowwise().sum());
    }
}

template <class A>
struct KeysResult {
    Matrix<A> dk, dv;
};

/// The part of some rows in dK and dV of the keys of `span`: backward_block() for these columns alone.
template <class A>
KeysResult<A> key_gradients(const Block& block, const Stored<A>& stored, const Column<A>& d, const Group<A>& group,
                            const Matrix<A>& q, const Matrix<A>& dout, Span span)
{
    using Scalar = typename A::Scalar;
    const Problem& problem = group.problem;
    KeysResult<A> result{Matrix<A>::Zero(span.count, group.k.cols()), Matrix<A>::Zero(span.count, group.v.cols())};
    const Eigen::Index begin = std::max(span.first, block.first_column);
    const Eigen::Index count = std::min(span.first + span.count, block.first_column + block.columns) - begin;
    if (count <= 0) {
        return result;
    }
    const auto columns = [&](const Matrix<A>& matrix) -> Matrix<A> {
        return matrix.middleCols(begin - block.first_column, count);
    };
    const Matrix<A> p = columns(stored.p);
    const Visible visible = stored.visible.middleCols(begin - block.first_column, count);
    Matrix<A> dp =
        visible.select(rounded<A>(product_by_transposed<Scalar>(dout, group.v.middleRows(begin, count))), Scalar{0});
    Matrix<A> kept = p;
    if (stored.dropout.size() > 0) {
        const Matrix<A> dropout = columns(stored.dropout);
        kept = rounded<A>(p.cwiseProduct(dropout));
        dp = rounded<A>(dp.cwiseProduct(dropout));
    }
    Matrix<A> ds = rounded<A>(p.cwiseProduct(rounded<A>(dp.colwise() - d)));
    if (stored.tanh.size() > 0) {
        ds = rounded<A>(ds.cwiseProduct(rounded<A>(Scalar{1} - rounded<A>(columns(stored.tanh).cwiseAbs2()).array())));
    }
    ds = visible.select(rounded<A>(ds * static_cast<Scalar>(problem.scale())), Scalar{0});
    result.dk.middleRows(begin - span.first, count) = transposed_product_of_visible<Scalar>(ds, q, visible);
    result.dv.middleRows(begin - span.first, count) = transposed_product_of_visible<Scalar>(kept, dout, visible);
    return result;
}

template <class A>
std::vector<ChosenValues::Keys> evaluate_keys(const Group<A>& group, const std::vector<Span>& spans)
{
    std::vector<KeysResult<A>> sums;
    sums.reserve(spans.size());
    for (const Span& span : spans) {
        sums.push_back({Matrix<A>::Zero(span.count, group.k.cols()), Matrix<A>::Zero(span.count, group.v.cols())});
    }
    std::vector<Task> tasks;
    for (std::int64_t member = 0; !spans.empty() && member < group.heads; ++member) {
        add_blocks(tasks, member, 0, {0, group.sequence.length_q}, group.sequence.length_k);
    }
    const auto compute = [&](const Task& task) {
        const Head head = group.head(task.member);
        const Block block(head, task.rows.first, task.rows.count);
        const auto v = group.v.middleRows(block.first_column, block.columns);
        const Matrix<A> q = group.q(head, task.rows);
        const Matrix<A> dout = group.dout(head, task.rows);
        const Stored<A> stored = forward_block<A>(block, q, group.k.middleRows(block.first_column, block.columns), v);
        const Column<A> d = row_terms<A>(stored, v, dout);
        std::vector<KeysResult<A>> parts;
        parts.reserve(spans.size());
        for (const Span& span : spans) {
            parts.push_back(key_gradients<A>(block, stored, d, group, q, dout, span));
        }
        return parts;
    };
    for_each_task(group.problem, tasks, compute, [&sums](const Task&, const std::vector<KeysResult<A>>& parts) {
        for (std::size_t i = 0; i < parts.size(); ++i) {
            sums[i].dk += parts[i].dk;
            sums[i].dv += parts[i].dv;
        }
    });
    std::vector<ChosenValues::Keys> values(spans.size());
    for (std::size_t i = 0; i < spans.size(); ++i) {
        append(values[i].dk, rounded<A>(sums[i].dk));
        append(values[i].dv, rounded<A>(sums[i].dv));
    }
    return values;
}

template <class A>
ChosenValues evaluate_as(const Problem& problem, const Chosen& chosen)
{
    const Group<A> group(problem, chosen);
    ChosenValues values;
    values.rows = evaluate_rows(group, chosen.rows, chosen.has_dbias && problem.is_backward);
    if (problem.is_backward) {
        values.keys = evaluate_keys(group, chosen.keys);
    }
    return values;
}

} // namespace

ChosenValues evaluate(const Problem& problem, const Chosen& chosen, Rounding rounding)
{
    switch (rounding) {
    case Rounding::none:
        break;
    case Rounding::float32:
        return evaluate_as<Native<float>>(problem, chosen);
    case Rounding::bfloat16:
        return evaluate_as<Rounded<round_to_bfloat16>>(problem, chosen);
    case Rounding::float8_e4m3:
        return evaluate_as<Float8Operands>(problem, chosen);
    case Rounding::float16:
        return evaluate_as<Rounded<round_to_float16>>(problem, chosen);
    }
    return evaluate_as<Native<double>>(problem, chosen);
}

namespace {

/// Of a bias that is one for all sequences.
Matrix<Native<double>> dbias_rows(const ConstTensorView& dbias, Span span, std::int64_t head)
{
    const std::int64_t first = head * dbias.strides[1] + span.first * dbias.strides[2];
    return Matrix<Native<double>>::NullaryExpr(span.count, dbias.shape[3], [&](Eigen::Index i, Eigen::Index j) {
        return read_element(dbias, first + i * dbias.strides[2] + j * dbias.strides[3]);
    });
}

} // namespace

ChosenValues results_of(const Problem& problem, const Chosen& chosen)
{
    using Exact = Native<double>;
    const Sequence sequence = sequence_of(problem, chosen.sequence);
    const std::int64_t heads = problem.heads_q / problem.heads_kv;
    ChosenValues values;
    for (const Span& span : chosen.rows) {
        ChosenValues::Rows& rows = values.rows.emplace_back();
        for (std::int64_t head = chosen.head_kv * heads; head < (chosen.head_kv + 1) * heads; ++head) {
            append(rows.o, rows_of<Exact>(problem.o, sequence, sequence.first_q, span, head));
            const bool packed = problem.lse.rank == 2;
            const auto& strides = problem.lse.strides;
            const std::int64_t start = packed ? head * strides[0] + sequence.first_q * strides[1]
                                              : sequence.batch * strides[0] + head * strides[1];
            for (std::int64_t i = span.first; i < span.first + span.count; ++i) {
                rows.lse.push_back(read_element(problem.lse, start + i * strides.at(packed ? 1 : 2)));
            }
            if (problem.is_backward) {
                append(rows.dq, rows_of<Exact>(problem.dq, sequence, sequence.first_q, span, head));
            }
            if (problem.is_backward && chosen.has_dbias) {
                append(rows.dbias, dbias_rows(problem.dbias, span, head));
            }
        }
    }
    for (const Span& span : chosen.keys) {
        if (problem.is_backward) {
            ChosenValues::Keys& keys = values.keys.emplace_back();
            append(keys.dk, rows_of<Exact>(problem.dk, sequence, sequence.first_k, span, chosen.head_kv));
            append(keys.dv, rows_of<Exact>(problem.dv, sequence, sequence.first_k, span, chosen.head_kv));
        }
    }
    return values;
}

} // namespace flashomp::reference
