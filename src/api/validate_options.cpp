#include "validate_options.hpp"

#include "overlap.hpp"
#include "validate_choice.hpp"
#include "validate_views.hpp"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <limits>

namespace flashomp {

void check_tensor(const char* name, const ConstTensorView& view, DType dtype, int rank,
                  const std::array<std::int64_t, 4>& shape, const char* like)
{
    ConstTensorView expected;
    expected.rank = rank;
    expected.shape = shape;
    if (!view) {
        throw Error(fmt::format("{} was not given; it must be {} {}, like {}.", name, name_of(dtype),
                                shape_string(expected), like));
    }
    bool same = view.rank == rank && view.dtype == dtype;
    for (int axis = 0; axis < rank && same; ++axis) {
        same = view.shape.at(static_cast<std::size_t>(axis)) == shape.at(static_cast<std::size_t>(axis));
    }
    if (!same) {
        throw Error(fmt::format("{} is {} {}; it must be {} {}, like {}.", name, name_of(view.dtype),
                                shape_string(view), name_of(dtype), shape_string(expected), like));
    }
    check_layout(name, view);
}

namespace {

/// Offsets of packed sequences: int32 [batch + 1] on the host, from 0 to `total` without a step back.
std::vector<std::int32_t> read_starts(const char* name, const ConstTensorView& view, std::int64_t total)
{
    if (!view) {
        throw Error(fmt::format("{} was not given; cu_seqlens_q and cu_seqlens_k must be given together.", name));
    }
    if (view.rank != 1 || view.dtype != DType::int32 || view.shape[0] < 1) {
        throw Error(
            fmt::format("{} is {} {}; it must be int32 [batch + 1].", name, name_of(view.dtype), shape_string(view)));
    }
    check_extent(name, "sequences", view.shape[0] - 1, most_rows);
    check_layout(name, view);
    if (view.memory != Memory::host) {
        throw Error(fmt::format("{} is in device memory; it must be in host memory, where the work is planned.", name));
    }
    const auto* first = static_cast<const std::int32_t*>(view.data);
    std::vector<std::int32_t> starts(first, first + view.shape[0]);
    if (starts.front() != 0) {
        throw Error(fmt::format("{} starts at {}; it must start at 0.", name, starts.front()));
    }
    for (std::size_t i = 1; i < starts.size(); ++i) {
        if (starts[i] < starts[i - 1]) {
            throw Error(fmt::format("{} decreases from {} to {} at index {}; it must not decrease.", name,
                                    starts[i - 1], starts[i], i));
        }
    }
    if (starts.back() != total) {
        throw Error(
            fmt::format("{} ends at {}; it must end at {}, the packed rows there are.", name, starts.back(), total));
    }
    return starts;
}

std::int64_t longest(const std::vector<std::int32_t>& starts)
{
    std::int64_t most = 0;
    for (std::size_t i = 1; i < starts.size(); ++i) {
        most = std::max<std::int64_t>(most, starts[i] - starts[i - 1]);
    }
    return most;
}

void apply_packing(Problem& problem, const Options& options)
{
    problem.starts_q = read_starts("cu_seqlens_q", options.cu_seqlens_q, problem.q.shape[0]);
    problem.starts_k = read_starts("cu_seqlens_k", options.cu_seqlens_k, problem.k.shape[0]);
    if (problem.starts_q.size() != problem.starts_k.size()) {
        throw Error(fmt::format("cu_seqlens_q has {} sequences and cu_seqlens_k {}; they must have equally many.",
                                problem.starts_q.size() - 1, problem.starts_k.size() - 1));
    }
    problem.batch = static_cast<std::int64_t>(problem.starts_q.size()) - 1;
    problem.seqlen_q = longest(problem.starts_q);
    problem.seqlen_k = longest(problem.starts_k);
}

/// A number for each head, or for each head of each sequence.
void check_per_head(const char* name, const Problem& problem, const ConstTensorView& view, std::int64_t heads,
                    const char* like)
{
    const bool per_batch = view.rank == 2;
    check_tensor(name, view, DType::float32, per_batch ? 2 : 1, {per_batch ? problem.batch : heads, heads, 0, 0}, like);
}

void check_scale(const char* name, const Problem& problem, const ConstTensorView& scale, std::int64_t heads)
{
    if (!scale) {
        return;
    }
    if (problem.dtype != DType::float8_e4m3) {
        throw Error(fmt::format("{} was given, but q is {}; it is allowed with float8_e4m3 tensors only.", name,
                                name_of(problem.dtype)));
    }
    check_per_head(name, problem, scale, heads, "[heads] or [batch, heads]");
}

void check_bias(const Problem& problem, const ConstTensorView& bias)
{
    const std::array<std::int64_t, 4> full{problem.batch, problem.heads_q, problem.seqlen_q, problem.seqlen_k};
    bool fits = bias.rank == 4;
    for (std::size_t axis = 0; axis < 4 && fits; ++axis) {
        fits = bias.shape.at(axis) == 1 || bias.shape.at(axis) == full.at(axis);
    }
    if (!fits) {
        throw Error(fmt::format("bias has shape {}; it must be [1 or {}, 1 or {}, 1 or {}, 1 or {}].",
                                shape_string(bias), full[0], full[1], full[2], full[3]));
    }
    if (bias.dtype != DType::float32 && bias.dtype != problem.dtype) {
        throw Error(
            fmt::format("bias is {}; it must be float32{}.", name_of(bias.dtype),
                        problem.dtype == DType::float32 ? "" : fmt::format(" or {}, as q", name_of(problem.dtype))));
    }
    check_layout("bias", bias);
}

/// Kernels compute in float32: beyond its range a number would be infinite there, and below it 0, which means another
/// thing (a softcap of 0 is off).
bool fits_float32(double value)
{
    const double size = std::abs(value);
    return size == 0.0 || (size >= static_cast<double>(std::numeric_limits<float>::min()) &&
                           size <= static_cast<double>(std::numeric_limits<float>::max())); // false for a NaN
}

void check_numbers(const Problem& problem, const Options& options)
{
    constexpr double most_scale = 2.35e38; // kernels multiply with log2 e
    if (!fits_float32(problem.scale) || std::abs(problem.scale) > most_scale) {
        throw Error(fmt::format("scale was {}; it must be 0, or 1.2e-38 to {} in size, so that it and its product with "
                                "log2(e) are float32 numbers.",
                                problem.scale, most_scale));
    }
    for (const auto& [name, side] :
         {std::pair{"left", options.window.left}, std::pair{"right", options.window.right}}) {
        if (side < -1) {
            throw Error(fmt::format("window {} was {}; it must be -1 (unbounded), 0 or more.", name, side));
        }
    }
    check_choice(options);
    if (!fits_float32(options.softcap) || options.softcap < 0.0) {
        throw Error(fmt::format("softcap was {}; it must be 0 (off), or 1.2e-38 to 3.4e+38, as float32 has it.",
                                options.softcap));
    }
    check_dropout(options.dropout);
}

} // namespace

void check_no_self_overlap(const char* name, const ConstTensorView& view)
{
    if (overlaps_itself(view)) {
        throw Error(
            fmt::format("{} has strides that put two of its elements at one address; an output must not overlap "
                        "itself.",
                        name));
    }
}

void check_dropout(const Dropout& dropout)
{
    if (!(dropout.probability >= 0.0 && dropout.probability < 1.0)) {
        throw Error(fmt::format("dropout was {}; it must be 0 (off) or more and less than 1.", dropout.probability));
    }
}

void apply_options(Problem& problem, const Options& options)
{
    problem.scale = options.scale.value_or(1.0 / std::sqrt(static_cast<double>(problem.head_dim)));
    check_numbers(problem, options);
    if (options.cu_seqlens_q || options.cu_seqlens_k) {
        apply_packing(problem, options);
    }
    if (options.alibi_slopes) {
        check_per_head("alibi_slopes", problem, options.alibi_slopes, problem.heads_q, "[heads_q] or [batch, heads_q]");
    }
    if (options.bias) {
        check_bias(problem, options.bias);
    }
    if (options.key_padding_mask) {
        check_tensor("key_padding_mask", options.key_padding_mask, DType::boolean, 2,
                     {problem.batch, problem.seqlen_k, 0, 0}, "[batch, seqlen_k]");
    }
    if (options.sink) {
        check_tensor("sink", options.sink, DType::float32, 1, {problem.heads_q, 0, 0, 0}, "[heads_q]");
    }
    check_scale("q_scale", problem, options.q_scale, problem.heads_q);
    check_scale("k_scale", problem, options.k_scale, problem.heads_kv);
    check_scale("v_scale", problem, options.v_scale, problem.heads_kv);
    problem.q_scale = options.q_scale;
    problem.k_scale = options.k_scale;
    problem.v_scale = options.v_scale;
    problem.causal = options.causal;
    problem.window = options.window;
    problem.softcap = options.softcap;
    problem.dropout = options.dropout;
    problem.alibi_slopes = options.alibi_slopes;
    problem.bias = options.bias;
    problem.key_padding_mask = options.key_padding_mask;
    problem.cu_seqlens_q = options.cu_seqlens_q;
    problem.cu_seqlens_k = options.cu_seqlens_k;
    problem.sink = options.sink;
}

void check_gradients(const Problem& problem, const BackwardArgs& args, const Options& options)
{
    if (args.dbias) {
        if (!options.bias) {
            throw Error("dbias was given without a bias; allowed is dbias with options.bias.");
        }
        check_tensor("dbias", args.dbias, options.bias.dtype, options.bias.rank, options.bias.shape, "bias");
    }
    if (args.dsink) {
        if (!options.sink) {
            throw Error("dsink was given without a sink; allowed is dsink with options.sink.");
        }
        check_tensor("dsink", args.dsink, DType::float32, 1, {problem.heads_q}, "sink");
    }
}

} // namespace flashomp
