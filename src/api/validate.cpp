#include "validate.hpp"

#include "overlap.hpp"
#include "problem_tensors.hpp"
#include "validate_cache.hpp"
#include "validate_options.hpp"
#include "validate_views.hpp"

#include <cmath>
#include <fmt/format.h>

namespace flashomp {

namespace {

std::string_view axes_text(bool packed)
{
    return packed ? "[total, heads, head_dim]" : "[batch, seqlen, heads, head_dim]";
}

/// The same of k and v.
std::string_view axes_text_of_keys(const Options& options, bool packed)
{
    if (options.block_table || options.kv_indices) {
        return "[pages, page_size, heads, head_dim]";
    }
    return options.cache_batch_index ? "[caches, seqlen, heads, head_dim]" : axes_text(packed);
}

/// Extent of an axis counted from the back, so that packed and batched tensors read alike.
std::int64_t from_back(const ConstTensorView& view, int axis)
{
    return view.shape.at(static_cast<std::size_t>(view.rank - axis));
}

bool has_8_bits(const ConstTensorView& view)
{
    return view.dtype == DType::float8_e4m3 || view.dtype == DType::int8;
}

/// `beside`: q, of k and v, which may be a cache of 8 bits.
void check_qkv(const char* name, const ConstTensorView& view, const ConstTensorView* beside, bool packed,
               bool is_backward, std::string_view axes)
{
    if (!view) {
        throw Error(fmt::format("{} was not given; it must be a tensor {}.", name, axes));
    }
    if (view.rank != (packed ? 3 : 4)) {
        throw Error(fmt::format("{} has {} axes, {}; it must be {}.", name, view.rank, shape_string(view), axes));
    }
    const bool is_narrow = beside != nullptr ? has_8_bits(view) : view.dtype == DType::float8_e4m3;
    if (view.dtype != DType::float32 && view.dtype != DType::bfloat16 && view.dtype != DType::float16 && !is_narrow) {
        throw Error(fmt::format("{} is {}; it must be float32, bfloat16 or float16.", name, name_of(view.dtype)));
    }
    if (is_narrow && is_backward) {
        throw Error(fmt::format("{} is {}, which only the forward pass takes; for backward it must be float32, "
                                "bfloat16 or float16.",
                                name, name_of(view.dtype)));
    }
}

/// One for all, or one of 8 bits for k and v of a cache.
void check_dtypes(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v)
{
    if (has_8_bits(k) && !has_8_bits(q)) {
        if (v.dtype != k.dtype) {
            throw Error(
                fmt::format("v is {} but k is {}; k and v must have one dtype.", name_of(v.dtype), name_of(k.dtype)));
        }
        return;
    }
    for (const auto& [name, view] : {std::pair{"k", k}, std::pair{"v", v}}) {
        if (view.dtype != q.dtype) {
            throw Error(fmt::format("{} is {} but q is {}; all of q, k and v must have one dtype.", name,
                                    name_of(view.dtype), name_of(q.dtype)));
        }
    }
}

void check_matches(const char* name, const ConstTensorView& view, const char* like, const ConstTensorView& expected)
{
    check_tensor(name, view, expected.dtype, expected.rank, expected.shape, like);
}

/// The same of o, dq, dk or dv, which may be float32 whatever q is. Only kernels of 16 bits have o of float8_e4m3.
void check_result(const char* name, const ConstTensorView& view, const char* like, ConstTensorView expected,
                  DType dtype)
{
    const bool may_be_float32 = dtype == DType::bfloat16 || dtype == DType::float16;
    if (may_be_float32 && view.dtype == DType::float32) {
        expected.dtype = DType::float32;
    }
    check_matches(name, view, may_be_float32 ? fmt::format("{}, or float32", like).c_str() : like, expected);
}

/// Checks the options, and q, k and v, and sets the shape that these agree on. The problem has its tensors and options.
void check_common(Problem& problem)
{
    each_tensor(problem, check_view);
    const ConstTensorView &q = problem.q, &k = problem.k, &v = problem.v;
    const bool cache = is_cache(problem); // beside which only q may be packed
    const bool packed = problem.options.cu_seqlens_q || (problem.options.cu_seqlens_k && !cache);
    const std::string_view axes_of_keys = axes_text_of_keys(problem.options, packed && !cache);
    check_qkv("q", q, nullptr, packed, problem.is_backward, axes_text(packed));
    check_qkv("k", k, &q, packed && !cache, problem.is_backward, axes_of_keys);
    check_qkv("v", v, &q, packed && !cache, problem.is_backward, axes_of_keys);
    check_dtypes(q, k, v);
    problem.batch = packed ? 0 : q.shape[0];
    problem.seqlen_q = from_back(q, 3);
    problem.seqlen_k = from_back(k, 3);
    problem.heads_q = from_back(q, 2);
    problem.heads_kv = from_back(k, 2);
    problem.head_dim = from_back(q, 1);
    problem.head_dim_v = from_back(v, 1);
    check_head_dim("q", problem.head_dim, most_head_dim);
    check_head_dim("v", problem.head_dim_v, most_head_dim_v);
    if (from_back(k, 1) != problem.head_dim) {
        throw Error(
            fmt::format("k has head_dim {} but q has {}; they must be equal.", from_back(k, 1), problem.head_dim));
    }
    if (problem.heads_kv < 1 || problem.heads_q < 1 || problem.heads_q > most_heads ||
        problem.heads_q % problem.heads_kv != 0) {
        throw Error(fmt::format("q has {} heads and k has {}; heads_q must be 1 to {} and divisible by heads_kv.",
                                problem.heads_q, problem.heads_kv, most_heads));
    }
    if (from_back(v, 2) != problem.heads_kv || from_back(v, 3) != problem.seqlen_k) {
        throw Error(fmt::format("v has shape {} but k has {}; they must agree in all but head_dim.", shape_string(v),
                                shape_string(k)));
    }
    if (cache) { // whose pages check_cache() looks at
        if (v.shape[0] != k.shape[0]) {
            throw Error(fmt::format("v has shape {} but k has {}; they must agree in all but head_dim.",
                                    shape_string(v), shape_string(k)));
        }
    } else if (!packed && (k.shape[0] != problem.batch || v.shape[0] != problem.batch)) {
        throw Error(fmt::format("q, k and v have batch {}, {} and {}; they must be equal.", q.shape[0], k.shape[0],
                                v.shape[0]));
    }
    for (const auto& [name, rows] :
         {std::pair{"q", problem.seqlen_q}, std::pair{"k", problem.seqlen_k}, std::pair{"batch of q", problem.batch}}) {
        check_extent(name, "rows", rows, most_rows);
    }
    check_layout("q", q);
    check_layout("k", k);
    check_layout("v", v);
    check_options(problem);
}

ConstTensorView output_shape(const Problem& problem)
{
    ConstTensorView shape = problem.q;
    shape.dtype = output_type_of(problem.dtype);
    shape.shape.at(static_cast<std::size_t>(shape.rank - 1)) = problem.head_dim_v;
    return shape;
}

ConstTensorView lse_shape(const Problem& problem)
{
    if (problem.q.rank == 3) {
        return ConstTensorView::contiguous(nullptr, DType::float32, {problem.heads_q, problem.q.shape[0]});
    }
    return ConstTensorView::contiguous(nullptr, DType::float32, {problem.batch, problem.heads_q, problem.seqlen_q});
}

} // namespace

void check_outputs(const Problem& problem)
{
    const auto refuse_shared = [](const char* name, const ConstTensorView& view, const char* other,
                                  const ConstTensorView& taken) {
        if (taken && overlap(view, taken)) {
            throw Error(fmt::format("{} overlaps {} in memory; outputs must not share memory with any other tensor of "
                                    "the call.",
                                    name, other));
        }
    };
    each_output(problem, [&](const char* name, const ConstTensorView& view) {
        if (!view) {
            return;
        }
        check_no_self_overlap(name, view);
        each_input(problem,
                   [&](const char* other, const ConstTensorView& taken) { refuse_shared(name, view, other, taken); });
        bool is_before = true;
        each_output(problem, [&](const char* other, const ConstTensorView& taken) {
            is_before = is_before && other != name;
            if (is_before) {
                refuse_shared(name, view, other, taken);
            }
        });
    });
}

Problem problem_of(const ForwardArgs& args, const Options& options)
{
    Problem problem;
    problem.dtype = args.q.dtype;
    problem.options = options;
    problem.q = args.q;
    problem.k = args.k;
    problem.v = args.v;
    problem.o = args.o;
    problem.lse = args.lse;
    return problem;
}

Problem problem_of(const BackwardArgs& args, const Options& options)
{
    Problem problem;
    problem.is_backward = true;
    problem.dtype = args.q.dtype;
    problem.options = options;
    problem.q = args.q;
    problem.k = args.k;
    problem.v = args.v;
    // Read only in this direction; Problem keeps them with forward's outputs.
    problem.o = as_result(args.o);
    problem.lse = as_result(args.lse);
    problem.dout = args.dout;
    problem.dq = args.dq;
    problem.dk = args.dk;
    problem.dv = args.dv;
    for (const TensorOption& option : tensor_options) {
        if (option.gradient) {
            problem.*option.gradient.kept = args.*option.gradient.given;
        }
    }
    return problem;
}

void validate(Problem& problem)
{
    check_common(problem);
    check_result("o", problem.o, "q with v's head_dim", output_shape(problem), problem.dtype);
    check_matches("lse", problem.lse, "float32 [batch, heads_q, seqlen_q]", lse_shape(problem));
    if (problem.is_backward) {
        check_matches("dout", problem.dout, "o", output_shape(problem));
        check_result("dq", problem.dq, "q", problem.q, problem.dtype);
        check_result("dk", problem.dk, "k", problem.k, problem.dtype);
        check_result("dv", problem.dv, "v", problem.v, problem.dtype);
        check_gradients(problem);
    }
    check_outputs(problem);
}

Problem validate_forward(const ForwardArgs& args, const Options& options)
{
    Problem problem = problem_of(args, options);
    validate(problem);
    check_cache_values(problem);
    return problem;
}

Problem validate_backward(const BackwardArgs& args, const Options& options)
{
    Problem problem = problem_of(args, options);
    validate(problem);
    return problem;
}

} // namespace flashomp
