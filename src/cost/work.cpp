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
    if (shape.blocks_percent > 0) {
        return static_cast<double>(shape.batch) * static_cast<double>(block_mask_of(shape).kept_pairs());
    }
    double pairs = 0;
    for (const Sequences& sequences : sequences_of(shape)) {
        pairs += sequences.count * static_cast<double>(visible_pairs(sequences.band));
    }
    return pairs;
}

namespace {

/// FLOPs of a product of all pairs, for a unit of its depth or width.
double flops_of_a_unit(const Shape& shape)
{
    return 2.0 * counted_pairs(shape) * static_cast<double>(shape.heads_q);
}

} // namespace

Flops flops(const Shape& shape)
{
    const double once = flops_of_a_unit(shape);
    const auto d = static_cast<double>(shape.head_dim);
    const auto dv = static_cast<double>(shape.head_dim_v);
    Flops all;
    all.forward = once * (d + dv);
    all.standard_backward = once * (2 * d + 2 * dv);
    all.backward = all.standard_backward + once * d;
    return all;
}

double pass_flops(const Shape& shape, const PassPlan& pass)
{
    const double once = flops_of_a_unit(shape);
    const auto d = static_cast<double>(shape.head_dim);
    const auto dv = static_cast<double>(shape.head_dim_v);
    switch (pass.launch.pass) {
    case offload::Pass::forward: // S for each part of O's columns, O
        return once * (pass.value_parts * d + dv);
    case offload::Pass::backward_query: // S, dP, dQ
        return once * (2 * d + dv);
    case offload::Pass::backward_key: // S, dP, dV, dK; apart: S, dV and then S, dP, dK
        return once * (2 * d + 2 * dv + (pass.sums_apart ? d : 0));
    case offload::Pass::backward_once: // S, dP, dV, dQ, dK
        return once * (3 * d + 2 * dv);
    case offload::Pass::backward_bias: // S, dP
        return once * (d + dv);
    case offload::Pass::backward_sink:
    case offload::Pass::backward_start: // sums over rows, not over pairs
    case offload::Pass::backward_end:
        break;
    }
    return 0;
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
