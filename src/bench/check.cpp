#include "check.hpp"

#include "accuracy.hpp"
#include "validate.hpp"

#include "flashomp/error.hpp"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

namespace flashomp::bench {

namespace {

/// A part of the problem: the last sequence, the last `heads` query heads, its query rows from `first` on.
struct Part {
    std::int64_t sequence = 0, start_q = 0, start_k = 0; ///< of a packed tensor's rows
    std::int64_t first = 0, rows = 0, keys = 0;
    std::int64_t heads = 1;
};

Part part_of(const cost::Shape& shape)
{
    const std::vector<std::int64_t> q = shape.lengths_q();
    const std::vector<std::int64_t> k = shape.lengths_k();
    Part part;
    part.sequence = shape.batch - 1;
    if (shape.packed) {
        for (std::size_t i = 0; i + 1 < q.size(); ++i) {
            part.start_q += q[i];
            part.start_k += k[i];
        }
    }
    constexpr std::int64_t most_scores = std::int64_t{1} << 22;
    constexpr std::int64_t sampled_rows = 128;
    const std::int64_t group = shape.heads_q / shape.heads_kv;
    const bool whole = group * q.back() * k.back() <= most_scores;
    part.heads = whole ? group : 1;
    part.rows = whole ? q.back() : std::min(q.back(), sampled_rows);
    part.first = q.back() - part.rows;
    part.keys = k.back();
    return part;
}

/// `rows` rows of the last `heads` heads of one sequence, as a batch of one.
template <class View>
View slice(const View& view, std::int64_t sequence, std::int64_t first, std::int64_t rows, std::int64_t heads)
{
    const bool packed = view.rank == 3;
    const std::size_t row = packed ? 0 : 1;
    const std::int64_t offset = (packed ? 0 : sequence * view.strides[0]) + first * view.strides.at(row) +
                                (view.shape.at(row + 1) - heads) * view.strides.at(row + 1);
    using Byte = std::conditional_t<std::is_same_v<View, ConstTensorView>, const char*, char*>;
    return View(static_cast<Byte>(view.data) + offset * size_of(view.dtype), view.dtype,
                {1, rows, heads, view.shape.at(row + 2)},
                {view.strides.at(row) * rows, view.strides.at(row), view.strides.at(row + 1), 1});
}

/// The same of a statistic [batch, heads, rows] or [heads, all rows].
template <class View>
View slice_rows(const View& view, std::int64_t sequence, std::int64_t first, std::int64_t rows, std::int64_t heads)
{
    const bool packed = view.rank == 2;
    const std::size_t head = packed ? 0 : 1;
    const std::int64_t offset =
        (packed ? 0 : sequence * view.strides[0]) + (view.shape.at(head) - heads) * view.strides.at(head) + first;
    using Byte = std::conditional_t<std::is_same_v<View, ConstTensorView>, const char*, char*>;
    return View(static_cast<Byte>(view.data) + offset * size_of(view.dtype), view.dtype, {1, heads, rows},
                {view.strides.at(head) * heads, view.strides.at(head), 1});
}

/// The factors [batch, heads] of the same.
ConstTensorView last_heads(const ConstTensorView& scale, std::int64_t sequence, std::int64_t heads)
{
    const auto* const first = static_cast<const float*>(scale.data) + sequence * scale.strides[0] +
                              (scale.shape[1] - heads) * scale.strides[1];
    return ConstTensorView(first, DType::float32, {heads}, {scale.strides[1]});
}

std::vector<double> doubles(const ConstTensorView& view)
{
    return io::doubles(io::HostTensor::copy_of(view));
}

/// Largest error of the naive baseline in any gradient compared: it counts for all of them.
double gradient_bound(const reference::BackwardResult& naive, const reference::BackwardResult& exact, bool has_dkv)
{
    double error = reference::naive_error(naive.dq, exact.dq);
    if (has_dkv) {
        error =
            std::max({error, reference::naive_error(naive.dk, exact.dk), reference::naive_error(naive.dv, exact.dv)});
    }
    return reference::tolerance(reference::gradient_factor, error);
}

void compare_outputs(const BackwardArgs& args, const reference::ForwardResult& exact,
                     const reference::ForwardResult& naive, Accuracy& result)
{
    using reference::output_factor;
    result.o = reference::max_error(doubles(args.o), exact.o);
    result.bound_o = reference::tolerance(output_factor, reference::naive_error(naive.o, exact.o));
    result.lse = reference::max_error(doubles(args.lse), exact.lse);
    result.bound_lse = reference::tolerance(output_factor, reference::naive_error(naive.lse, exact.lse));
}

void compare_unrounded(const std::vector<double>& o, const std::vector<double>& exact, Accuracy& result)
{
    double differences = 0, values = 0;
    for (std::size_t i = 0; i < o.size(); ++i) {
        differences += (o[i] - exact[i]) * (o[i] - exact[i]);
        values += exact[i] * exact[i];
    }
    result.unrounded_o = reference::max_error(o, exact);
    result.unrounded_rms = values > 0 ? std::sqrt(differences / values) : 0;
}

std::string words(const cost::Shape& shape, const Part& part, std::int64_t length)
{
    const std::string rows =
        part.rows == length ? std::string("all rows") : fmt::format("the last {} of {} rows", part.rows, length);
    return fmt::format("{} of {} of {} heads of 1 of {} sequences", rows, part.heads, shape.heads_q, shape.batch);
}

/// The part's arguments and options, with the results as they are now.
struct Compared {
    Compared(BenchCase& bench, bool backward);

    [[nodiscard]] Problem problem() const;

    Part part;
    BackwardArgs args;
    Options options;
    bool is_backward;
};

Compared::Compared(BenchCase& bench, bool backward) : part(part_of(bench.shape())), is_backward(backward)
{
    const cost::Shape& shape = bench.shape();
    options = bench.scales_on_host();
    for (const auto& [scale, heads] :
         {std::pair{&options.q_scale, part.heads}, std::pair{&options.k_scale, std::int64_t{1}},
          std::pair{&options.v_scale, std::int64_t{1}}}) {
        if (*scale) {
            *scale = last_heads(*scale, part.sequence, heads);
        }
    }
    options.scale = bench.options().scale;
    options.softcap = bench.options().softcap;
    options.causal = shape.causal;
    if (const std::int64_t length = shape.lengths_q().back(); shape.causal == Causal::top_left && part.rows < length) {
        // The last rows alone keep their place only when the mask is anchored bottom right.
        if (length != part.keys) {
            throw Error(fmt::format("shape was '{}'; allowed with _topleft and that many scores are equal lengths.",
                                    shape.name()));
        }
        options.causal = Causal::bottom_right;
    }
    const BackwardArgs all = bench.on_host();
    const std::int64_t first = part.start_q + part.first;
    args.q = slice(all.q, part.sequence, first, part.rows, part.heads);
    args.k = slice(all.k, part.sequence, part.start_k, part.keys, 1);
    args.v = slice(all.v, part.sequence, part.start_k, part.keys, 1);
    args.o = slice(all.o, part.sequence, first, part.rows, part.heads);
    args.lse = slice_rows(all.lse, part.sequence, first, part.rows, part.heads);
    args.dout = slice(all.dout, part.sequence, first, part.rows, part.heads);
    if (backward) {
        args.dq = slice(all.dq, part.sequence, first, part.rows, part.heads);
        args.dk = slice(all.dk, part.sequence, part.start_k, part.keys, 1);
        args.dv = slice(all.dv, part.sequence, part.start_k, part.keys, 1);
    }
}

Problem Compared::problem() const
{
    if (is_backward) {
        return validate_backward(args, options);
    }
    // Only read, but the arguments of a forward call are where the results are.
    return validate_forward({args.q, args.k, args.v, as_result(args.o), as_result(args.lse)}, options);
}

} // namespace

bool Accuracy::is_good() const
{
    const bool gradients =
        !has_gradients || (dq <= bound_gradient && (!has_dkv || (dk <= bound_gradient && dv <= bound_gradient)));
    return o <= bound_o && lse <= bound_lse && gradients;
}

std::string Accuracy::text() const
{
    std::string text =
        fmt::format("errors: o {:.2e} (bound {:.2e}), LSE {:.2e} (bound {:.2e})", o, bound_o, lse, bound_lse);
    if (has_gradients) {
        text += fmt::format(", dq {:.2e}", dq);
        text += has_dkv ? fmt::format(", dk {:.2e}, dv {:.2e}", dk, dv) : "";
        text += fmt::format(" (bound {:.2e})", bound_gradient);
    }
    return text;
}

Expected expected(BenchCase& bench, bool backward)
{
    const Compared compared(bench, backward);
    const Problem problem = compared.problem();
    const auto rounding = reference::rounding_of(bench.dtype());
    if (backward) {
        return {reference::evaluate(problem), reference::evaluate(problem, rounding)};
    }
    return {{reference::forward(problem), {}}, {reference::forward(problem, rounding), {}}};
}

Accuracy check(BenchCase& bench, bool backward, const Expected& expected)
{
    const Compared compared(bench, backward);
    const BackwardArgs& args = compared.args;
    const Part& part = compared.part;
    Accuracy result;
    result.compared = words(bench.shape(), part, bench.shape().lengths_q().back());
    compare_outputs(args, expected.exact.outputs, expected.naive.outputs, result);
    if (!backward) {
        if (const BenchCase::Unrounded* const inputs = bench.unrounded()) {
            const std::int64_t first = part.start_q + part.first;
            Problem unrounded = compared.problem();
            unrounded.q_scale = unrounded.k_scale = unrounded.v_scale = {};
            unrounded.q = slice(inputs->q.view(), part.sequence, first, part.rows, part.heads);
            unrounded.k = slice(inputs->k.view(), part.sequence, part.start_k, part.keys, 1);
            unrounded.v = slice(inputs->v.view(), part.sequence, part.start_k, part.keys, 1);
            compare_unrounded(doubles(args.o), reference::forward(unrounded).o, result);
        }
        return result;
    }
    const reference::BackwardResult& exact = expected.exact.gradients;
    result.has_gradients = true;
    result.has_dkv =
        part.rows == bench.shape().lengths_q().back() && part.heads == bench.shape().heads_q / bench.shape().heads_kv;
    result.dq = reference::max_error(doubles(args.dq), exact.dq);
    if (result.has_dkv) {
        result.dk = reference::max_error(doubles(args.dk), exact.dk);
        result.dv = reference::max_error(doubles(args.dv), exact.dv);
    }
    result.bound_gradient = gradient_bound(expected.naive.gradients, exact, result.has_dkv);
    return result;
}

Accuracy check(BenchCase& bench, bool backward)
{
    return check(bench, backward, expected(bench, backward));
}

} // namespace flashomp::bench
