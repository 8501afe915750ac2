#include "validate_options.hpp"

#include <cmath>
#include <fmt/format.h>

namespace flashomp {

void check_layout(const char* name, const ConstTensorView& view)
{
    const auto last = static_cast<std::size_t>(view.rank - 1);
    if (view.data == nullptr && view.elements() > 0) {
        throw Error(fmt::format("{} has shape {} but its data is null; it must point to its elements.", name,
                                shape_string(view)));
    }
    for (int axis = 0; axis < view.rank; ++axis) {
        const auto a = static_cast<std::size_t>(axis);
        if (view.shape.at(a) < 0 || view.strides.at(a) < 0) {
            throw Error(fmt::format("{} has extent {} and stride {} on axis {}; both must be 0 or more.", name,
                                    view.shape.at(a), view.strides.at(a), axis));
        }
    }
    if (view.shape.at(last) > 1 && view.strides.at(last) != 1) {
        throw Error(fmt::format("{} has stride {} on its last axis; it must be 1.", name, view.strides.at(last)));
    }
}

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

void refuse_unbuilt(const Options& options)
{
    const auto refuse = [](bool given, const char* name) {
        if (given) {
            throw NotBuilt(fmt::format("{} was given, but this build does not have it yet; leave it out.", name));
        }
    };
    refuse(options.softcap != 0.0, "softcap");
    refuse(static_cast<bool>(options.alibi_slopes), "alibi_slopes");
    refuse(static_cast<bool>(options.bias), "bias");
    refuse(static_cast<bool>(options.key_padding_mask), "key_padding_mask");
    refuse(static_cast<bool>(options.cu_seqlens_q), "cu_seqlens_q");
    refuse(static_cast<bool>(options.cu_seqlens_k), "cu_seqlens_k");
    refuse(static_cast<bool>(options.sink), "sink");
    refuse(options.dropout.probability != 0.0, "dropout");
}

void apply_options(Problem& problem, const Options& options)
{
    problem.scale = options.scale.value_or(1.0 / std::sqrt(static_cast<double>(problem.head_dim)));
    if (!std::isfinite(problem.scale)) {
        throw Error(fmt::format("scale was {}; it must be a finite number.", problem.scale));
    }
    for (const auto& [name, side] :
         {std::pair{"left", options.window.left}, std::pair{"right", options.window.right}}) {
        if (side < -1) {
            throw Error(fmt::format("window {} was {}; it must be -1 (unbounded), 0 or more.", name, side));
        }
    }
    if (options.threads < 0) {
        throw Error(fmt::format("threads was {}; it must be 0 (OMP_NUM_THREADS) or more.", options.threads));
    }
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
