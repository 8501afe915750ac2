// The loops around standard_attention.hpp: heads in parallel, sums over heads in a fixed order.
#include "reference.hpp"

#include "cached_rows.hpp"
#include "host_threads.hpp"
#include "option_list.hpp"
#include "standard_attention.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <exception>
#include <limits>
#include <optional>
#include <utility>

namespace flashomp::reference {

namespace {

/// A product of extents as a container size.
std::size_t count(std::int64_t elements)
{
    return static_cast<std::size_t>(elements);
}

/// Rows of q, k, v and their gradients over the whole batch: B·N, or the total of packed sequences.
std::int64_t rows_of(const ConstTensorView& view)
{
    return view.rank == 4 ? view.shape[0] * view.shape[1] : view.shape[0];
}

/// One head of one sequence as a matrix. `first` is the sequence's first row in a packed tensor, `scale` what its
/// elements are to be multiplied with.
template <class A>
Matrix<A> load(const ConstTensorView& view, std::int64_t batch, std::int64_t first, std::int64_t rows,
               std::int64_t head, double scale = 1.0)
{
    const bool packed = view.rank == 3;
    const std::size_t axis = packed ? 0 : 1; // rows, then heads, then head_dim
    const std::int64_t start = (packed ? first : batch) * view.strides[0] + head * view.strides.at(axis + 1);
    return Matrix<A>::NullaryExpr(rows, view.shape.at(axis + 2), [&](Eigen::Index i, Eigen::Index c) {
        const std::int64_t at = start + i * view.strides.at(axis) + c * view.strides.at(axis + 2);
        return A::round(static_cast<typename A::Scalar>(read_element(view, at) * scale));
    });
}

/// The inputs of one head.
template <class A>
struct Inputs {
    explicit Inputs(const Head& head)
    {
        const Problem& problem = head.problem;
        const Sequence& sequence = head.sequence;
        q = load<A>(problem.q, sequence.batch, sequence.first_q, sequence.length_q, head.index,
                    head.scale(problem.options.q_scale, head.index));
        if (is_cache(problem)) { // in forward alone
            k = load_cached<A>(problem, problem.k, problem.options.k_scale, sequence, head.kv_index());
            v = load_cached<A>(problem, problem.v, problem.options.v_scale, sequence, head.kv_index());
            return;
        }
        k = load<A>(problem.k, sequence.batch, sequence.first_k, sequence.length_k, head.kv_index(),
                    head.scale(problem.options.k_scale, head.kv_index()));
        v = load<A>(problem.v, sequence.batch, sequence.first_k, sequence.length_k, head.kv_index(),
                    head.scale(problem.options.v_scale, head.kv_index()));
        if (problem.dout) {
            dout = load<A>(problem.dout, sequence.batch, sequence.first_q, sequence.length_q, head.index);
        }
        if (problem.is_backward && problem.keys_are_part()) { // of shards, which are not packed
            const ConstTensorView& lse = problem.lse;
            const std::int64_t first = sequence.batch * lse.strides[0] + head.index * lse.strides[1];
            whole.lse = Column<A>::NullaryExpr(sequence.length_q, [&](Eigen::Index i) {
                return static_cast<typename A::Scalar>(read_element(lse, first + i * lse.strides[2]));
            });
            const auto o = load<A>(problem.o, sequence.batch, sequence.first_q, sequence.length_q, head.index);
            whole.d = rounded<A>(rounded<A>(dout.cwiseProduct(o)).rowwise().sum());
        }
    }

    Matrix<A> q, k, v, dout;
    WholeRows<A> whole; ///< empty where all keys are here
};

/// The rows of one head inside a contiguous [rows, heads, width] result.
template <class Scalar>
auto head_of(std::vector<Scalar>& values, std::int64_t first, std::int64_t rows, std::int64_t heads, std::int64_t head,
             std::int64_t width)
{
    using Rows = Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
    Scalar* const start = values.empty() ? nullptr : values.data() + (first * heads + head) * width;
    return Eigen::Map<Rows, 0, Eigen::OuterStride<>>(start, rows, width, Eigen::OuterStride<>(heads * width));
}

/// Runs compute(head) for all heads in parallel and collect(head, result) one at a time, in the order of the heads
/// whatever the number of threads: sums over heads have the same bits on every run.
template <class Compute, class Collect>
void for_each_head(const Problem& problem, Compute compute, Collect collect)
{
    // Without queries there is nothing to compute, however large the batch.
    const std::int64_t tasks = problem.seqlen_q == 0 ? 0 : problem.batch * problem.heads_q;
    const int threads = threads_of(problem);
    std::exception_ptr failure; // exceptions must not leave a parallel region; only the ordered part touches this
#pragma omp parallel for ordered schedule(static, 1) num_threads(threads)
    for (std::int64_t task = 0; task < tasks; ++task) {
        const Head head{problem, sequence_of(problem, task / problem.heads_q), task % problem.heads_q};
        std::optional<decltype(compute(head))> result;
        std::exception_ptr mine;
        try {
            result = compute(head);
        } catch (...) {
            mine = std::current_exception();
        }
#pragma omp ordered
        {
            if (result) {
                collect(head, *result);
            } else if (!failure) {
                failure = std::exchange(mine, nullptr);
            }
        }
    }
    if (failure) {
        std::rethrow_exception(failure);
    }
}

/// Rows that are computed at a time: their matrices of scores fit in a core's cache.
Eigen::Index rows_of_a_block(const Head& head)
{
    constexpr std::int64_t scores = std::int64_t{1} << 17;
    return std::max(std::int64_t{16}, scores / std::max(std::int64_t{1}, head.sequence.length_k));
}

/// Everything of one head. The gradients are empty when they are not asked for, ds also without a bias.
template <class A>
struct HeadResult {
    Matrix<A> o;
    Column<A> lse;
    Gradients<A> gradients;
};

template <class A>
HeadResult<A> compute_head(const Head& head, bool with_gradients)
{
    const Problem& problem = head.problem;
    const Inputs<A> in(head);
    const Eigen::Index rows = in.q.rows();
    HeadResult<A> result;
    result.o.resize(rows, in.v.cols());
    result.lse.resize(rows);
    Gradients<A>& sum = result.gradients;
    if (with_gradients) {
        sum.dq.resize(rows, in.q.cols());
        sum.dk.setZero(in.k.rows(), in.k.cols());
        sum.dv.setZero(in.v.rows(), in.v.cols());
        if (problem.options.bias) {
            sum.ds.setZero(rows, in.k.rows());
        }
    }
    for (Eigen::Index first = 0; first < rows; first += rows_of_a_block(head)) {
        const Block block(head, first, std::min(rows_of_a_block(head), rows - first));
        const auto of_rows = [&block](auto& matrix) { return matrix.middleRows(block.first_row, block.rows); };
        const auto of_columns = [&block](auto& matrix) { return matrix.middleRows(block.first_column, block.columns); };
        const auto q = of_rows(in.q);
        const auto k = of_columns(in.k);
        const auto v = of_columns(in.v);
        Stored<A> stored = forward_block<A>(block, q, k, v);
        of_rows(result.o) = stored.o;
        result.lse.segment(first, block.rows) = stored.lse;
        if (with_gradients) {
            const bool is_part = in.whole.lse.size() > 0;
            const WholeRows<A> whole = is_part ? in.whole.segment(first, block.rows) : WholeRows<A>{};
            if (is_part) {
                take_probabilities<A>(stored, whole.lse);
            }
            const Gradients<A> part =
                backward_block<A>(block, stored, q, k, v, of_rows(in.dout), is_part ? &whole.d : nullptr);
            of_rows(sum.dq) = part.dq;
            of_columns(sum.dk) += part.dk;
            of_columns(sum.dv) += part.dv;
            sum.dsink += part.dsink;
            if (problem.options.bias) {
                sum.ds.block(first, block.first_column, block.rows, block.columns) = part.ds;
            }
        }
    }
    sum.dk = rounded<A>(sum.dk);
    sum.dv = rounded<A>(sum.dv);
    return result;
}

template <class A>
Evaluation evaluate_as(const Problem& problem, bool with_gradients)
{
    using Scalar = typename A::Scalar;
    const std::int64_t heads = problem.heads_q;
    const std::int64_t rows_q = rows_of(problem.q);
    const std::int64_t rows_k = rows_of(problem.k);
    ForwardResult outputs;
    outputs.o.resize(count(rows_q * heads * problem.head_dim_v));
    outputs.lse.resize(count(rows_q * heads));
    std::vector<Scalar> dq, dk, dv, dbias, dsink;
    if (with_gradients) {
        dq.resize(count(rows_q * heads * problem.head_dim));
        dk.resize(count(rows_k * problem.heads_kv * problem.head_dim));
        dv.resize(count(rows_k * problem.heads_kv * problem.head_dim_v));
        dbias.resize(count(problem.options.bias.elements()));
        dsink.resize(count(problem.options.sink.elements()));
    }
    const auto& shape = problem.options.bias.shape;
    const std::array<std::int64_t, 4> bias_strides = broadcast_strides(ConstTensorView::contiguous(
        nullptr, DType::float64, {shape[0], shape[1], shape[2], shape[3]})); // of the contiguous dbias

    const auto compute = [with_gradients](const Head& head) { return compute_head<A>(head, with_gradients); };
    for_each_head(problem, compute, [&](const Head& head, const HeadResult<A>& result) {
        const Sequence& s = head.sequence;
        head_of(outputs.o, s.first_q, s.length_q, heads, head.index, problem.head_dim_v) =
            result.o.template cast<double>();
        const bool packed = problem.q.rank == 3;
        const std::int64_t at = packed ? head.index * rows_q + s.first_q : s.first_q * heads + head.index * s.length_q;
        Eigen::Map<Eigen::VectorXd>(outputs.lse.data() + at, s.length_q) = result.lse.template cast<double>();
        if (!with_gradients) {
            return;
        }
        const Gradients<A>& gradients = result.gradients;
        const std::int64_t kv = head.kv_index();
        head_of(dq, s.first_q, s.length_q, heads, head.index, problem.head_dim) = gradients.dq;
        head_of(dk, s.first_k, s.length_k, problem.heads_kv, kv, problem.head_dim) += gradients.dk;
        head_of(dv, s.first_k, s.length_k, problem.heads_kv, kv, problem.head_dim_v) += gradients.dv;
        if (problem.options.bias) {
            const auto [b, h, row, column] = bias_strides;
            Scalar* start = dbias.data() + s.batch * b + head.index * h;
            for (std::int64_t i = 0; i < s.length_q; ++i) {
                for (std::int64_t j = 0; j < s.length_k; ++j) {
                    start[i * row + j * column] += gradients.ds(i, j);
                }
            }
        }
        if (problem.options.sink) {
            dsink[count(head.index)] += gradients.dsink;
        }
    });

    const auto finished = [](const std::vector<Scalar>& sums) {
        std::vector<double> values(sums.size());
        std::transform(sums.begin(), sums.end(), values.begin(),
                       [](Scalar sum) { return static_cast<double>(A::round(sum)); });
        return values;
    };
    return {std::move(outputs), {finished(dq), finished(dk), finished(dv), finished(dbias), finished(dsink)}};
}

Evaluation evaluate(const Problem& problem, Rounding rounding, bool with_gradients)
{
    switch (rounding) {
    case Rounding::none:
        break;
    case Rounding::float32:
        return evaluate_as<Native<float>>(problem, with_gradients);
    case Rounding::bfloat16:
        return evaluate_as<Rounded<round_to_bfloat16>>(problem, with_gradients);
    case Rounding::float8_e4m3:
        return evaluate_as<Float8Operands>(problem, with_gradients);
    case Rounding::float16:
        return evaluate_as<Rounded<round_to_float16>>(problem, with_gradients);
    }
    return evaluate_as<Native<double>>(problem, with_gradients);
}

/// Writes a contiguous result through any strides, if the caller gave the tensor.
void write(const std::vector<double>& values, const TensorView& view)
{
    if (!view) {
        return;
    }
    for (std::int64_t n = 0; n < static_cast<std::int64_t>(values.size()); ++n) {
        std::int64_t at = 0;
        std::int64_t rest = n;
        for (int axis = view.rank - 1; axis >= 0; --axis) {
            const std::int64_t extent = view.shape[static_cast<std::size_t>(axis)];
            at += rest % extent * view.strides[static_cast<std::size_t>(axis)];
            rest /= extent;
        }
        write_element(view, at, values[count(n)]);
    }
}

} // namespace

ForwardResult forward(const Problem& problem, Rounding rounding)
{
    return evaluate(problem, rounding, false).outputs;
}

BackwardResult backward(const Problem& problem, Rounding rounding)
{
    return evaluate(problem, rounding, true).gradients;
}

Evaluation evaluate(const Problem& problem, Rounding rounding)
{
    return evaluate(problem, rounding, true);
}

int threads_of(const Problem& problem)
{
    return host_threads(problem.options.threads, problem.batch * problem.heads_q);
}

void forward_into(const Problem& problem)
{
    const ForwardResult result = forward(problem);
    write(result.o, problem.o);
    write(result.lse, problem.lse);
}

void backward_into(const Problem& problem)
{
    const BackwardResult result = backward(problem);
    write(result.dq, problem.dq);
    write(result.dk, problem.dk);
    write(result.dv, problem.dv);
    write(result.dbias, problem.dbias);
    write(result.dsink, problem.dsink);
}

std::int64_t standard_attention_bytes(const Problem& problem)
{
    const std::int64_t matrices = problem.is_backward ? 4 : 2;
    double scores = 0; // with repeated rows (strides of 0), there may be more of them than int64 holds
    if (!problem.starts_q.empty()) {
        // The tables of a cache may be gone: a report is put together after the run.
        const auto length = [](const std::vector<std::int32_t>& starts, std::int64_t longest, std::int64_t b) {
            return static_cast<double>(starts.empty() ? longest : starts[count(b) + 1] - starts[count(b)]);
        };
        for (std::int64_t b = 0; b < problem.batch; ++b) {
            scores += length(problem.starts_q, problem.seqlen_q, b) * length(problem.starts_k, problem.seqlen_k, b);
        }
    } else {
        scores = static_cast<double>(problem.batch) * static_cast<double>(problem.seqlen_q) *
                 static_cast<double>(problem.skipped_keys + problem.seqlen_k);
    }
    const double bytes = static_cast<double>(matrices * size_of(problem.dtype) * problem.heads_q) * scores;
    constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
    return bytes < static_cast<double>(most) ? static_cast<std::int64_t>(bytes) : most;
}

std::vector<std::uint8_t> dropout_mask(const Problem& problem)
{
    const PhiloxKey key = dropout_key(problem.options.dropout.seed, problem.options.dropout.offset);
    std::vector<std::uint8_t> mask;
    mask.reserve(count(problem.batch * problem.heads_q * problem.seqlen_q * problem.seqlen_k));
    for (std::int64_t b = 0; b < problem.batch; ++b) {
        for (std::int64_t h = 0; h < problem.heads_q; ++h) {
            const Head head{problem, {b, 0, 0, problem.seqlen_q, problem.seqlen_k}, h};
            for (std::int64_t i = 0; i < problem.seqlen_q; ++i) {
                for (std::int64_t j = 0; j < problem.seqlen_k; ++j) {
                    mask.push_back(head.dropout(key, i, j) > 0.0 ? 1 : 0);
                }
            }
        }
    }
    return mask;
}

} // namespace flashomp::reference
