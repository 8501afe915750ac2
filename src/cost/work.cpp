#include "work.hpp"

#include "masks.hpp"

namespace flashomp::cost {

namespace {

double all_pairs(const Shape& shape)
{
    double pairs = 0;
    for (const Sequences& same : sequences_of(shape)) {
        pairs += same.count * static_cast<double>(same.band.q_len) * static_cast<double>(same.band.k_len);
    }
    return pairs;
}

} // namespace

double counted_pairs(const Shape& shape)
{
    double pairs = 0;
    for (const Sequences& sequences : sequences_of(shape)) {
        pairs += sequences.count * visible_pairs(sequences.band);
    }
    return pairs;
}

Flops flops(const Shape& shape)
{
    const double once =
        2.0 * counted_pairs(shape) * static_cast<double>(shape.heads_q); // of a product, a unit of depth
    const auto d = static_cast<double>(shape.head_dim);
    const auto dv = static_cast<double>(shape.head_dim_v);
    Flops all;
    all.forward = once * (d + dv);
    all.standard_backward = once * (2 * d + 2 * dv);
    all.backward = all.standard_backward + once * d;
    all.executed_backward = once * (4 * d + 3 * dv);
    return all;
}

Saved saved(const Shape& shape, DType dtype)
{
    constexpr double statistic = 4; // float32
    const auto element = static_cast<double>(size_of(dtype));
    const auto heads = static_cast<double>(shape.heads_q);
    const auto rows = static_cast<double>(shape.rows_q());
    const auto longest = static_cast<double>(shape.seqlen_q);
    Saved all;
    all.standard = element * heads * all_pairs(shape);
    all.lse = statistic * heads * rows;
    all.maximum_and_sum = 2 * all.lse;
    all.standard_per_head = element * longest * static_cast<double>(shape.seqlen_k);
    all.lse_per_head = statistic * longest;
    all.maximum_and_sum_per_head = 2 * all.lse_per_head;
    return all;
}

} // namespace flashomp::cost
