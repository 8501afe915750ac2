#include "layers.hpp"

#include "work.hpp"

#include "flashomp/error.hpp"

#include <fmt/format.h>

namespace flashomp::cost {

std::vector<ModelSaved> model_table(const Shape& shape, DType dtype, std::int64_t layers,
                                    const std::vector<std::int64_t>& seqlens)
{
    std::vector<ModelSaved> table;
    for (const std::int64_t seqlen : seqlens) {
        Shape one = shape;
        one.seqlen_q = seqlen;
        one.seqlen_k = seqlen;
        const Saved bytes = saved(one, dtype);
        const auto count = static_cast<double>(layers);
        table.push_back({seqlen, bytes.standard_per_head, bytes.maximum_and_sum_per_head, bytes.lse_per_head,
                         count * bytes.standard, count * bytes.maximum_and_sum, count * bytes.lse});
    }
    return table;
}

std::vector<Checkpointing> checkpointing(const Shape& shape, std::int64_t layers)
{
    if (shape.packed || shape.seqlen_q != shape.seqlen_k || shape.head_dim != shape.head_dim_v) {
        throw Error(fmt::format("shape was '{}'; with layers, allowed are equal lengths and head dims, not packed.",
                                shape.name()));
    }
    const auto s = static_cast<double>(shape.seqlen_q);
    const auto b = static_cast<double>(shape.batch);
    const auto a = static_cast<double>(shape.heads_q);
    const double h = a * static_cast<double>(shape.head_dim);
    const auto count = static_cast<double>(layers);

    const double linear = 34 * s * b * h;
    const double matrices = 5 * a * s * s * b;
    const double statistics = 4 * a * s * b;
    const double input = 2 * s * b * h;
    const double forward = 24 * b * s * h * h + 4 * b * s * s * h;
    const double recomputed = 2 * b * s * s * h;
    const double none = 3 * forward;

    const auto way = [&](std::string_view name, double kept, double whole, double flops) {
        return Checkpointing{name, kept, count * kept + whole, count * flops, flops / none - 1.0};
    };
    const double standard = linear + matrices;
    const double flash = linear + statistics;
    return {way("none", standard, 0, none), way("flash", flash, 0, none + recomputed),
            way("checkpoint", input, standard, none + forward), way("both", input, flash, none + forward + recomputed)};
}

} // namespace flashomp::cost
