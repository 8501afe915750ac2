#include "traffic.hpp"

#include "masks.hpp"
#include "work.hpp"

#include <algorithm>

namespace flashomp::cost {

namespace {

using offload::Pass;

constexpr double statistic = 4; // bytes of a float32

/// Rows of all blocks that stay, and of all that stream past them, for one head.
struct Rows {
    double resident = 0, streamed = 0;
};

Rows rows_of(const Problem& problem, const offload::Launch& launch)
{
    const bool keys_stay = offload::keys_stay(launch.pass);
    const bool packed = !problem.starts_q.empty();
    Rows rows;
    for (std::int64_t b = 0; b < (packed ? problem.batch : 1); ++b) { // others are alike
        const auto i = static_cast<std::size_t>(b);
        const int q_len = packed ? problem.starts_q[i + 1] - problem.starts_q[i] : static_cast<int>(problem.seqlen_q);
        const int k_len = packed && !problem.starts_k.empty() ? problem.starts_k[i + 1] - problem.starts_k[i]
                                                              : static_cast<int>(problem.seen_keys());
        const offload::Band band = band_of(problem, q_len, k_len);
        const int length = keys_stay ? k_len : q_len;
        for (int first = 0; first < length; first += launch.resident_rows) {
            const int last = std::min(length, first + launch.resident_rows);
            const offload::Range range = keys_stay ? band.queries(first, last) : band.keys(first, last);
            rows.resident += last - first;
            // Blocks start at multiples of their size, as in the kernels.
            const int begin = range.begin / launch.stream_rows * launch.stream_rows;
            rows.streamed += std::max(0, range.end - begin);
        }
    }
    if (!packed) {
        rows.resident *= static_cast<double>(problem.batch);
        rows.streamed *= static_cast<double>(problem.batch);
    }
    return rows;
}

double output_element_bytes(DType dtype)
{
    return static_cast<double>(size_of(output_type_of(dtype)));
}

} // namespace

Traffic standard_traffic(const Shape& shape, DType dtype, bool backward)
{
    const auto element = static_cast<double>(size_of(dtype)) * static_cast<double>(shape.heads_q);
    const auto d = static_cast<double>(shape.head_dim);
    const auto dv = static_cast<double>(shape.head_dim_v);
    double matrix = 0;
    for (const Sequences& same : sequences_of(shape)) {
        matrix += same.count * static_cast<double>(same.band.q_len) * static_cast<double>(same.band.k_len);
    }
    const auto q = static_cast<double>(shape.rows_q());
    const auto k = static_cast<double>(shape.rows_k());
    if (!backward) {
        // S: reads Q, K. P: reads S. O: reads P, V.
        return {element * (q * d + k * d + matrix + matrix + k * dv), element * (matrix + matrix + q * dv)};
    }
    // dV: P, dO. dP: dO, V. dS: P, dP. dQ: dS, K. dK: dS, Q.
    return {element * (5 * matrix + 2 * q * dv + k * dv + k * d + q * d),
            element * (2 * matrix + k * dv + q * d + k * d)};
}

Traffic least_traffic(const Shape& shape, DType dtype, bool backward)
{
    double seen_q = 0, seen_k = 0; // of these, what has to be read: rows with a key, and keys with a row
    for (const Sequences& sequences : sequences_of(shape)) {
        const offload::Band& band = sequences.band;
        const auto length = [&](offload::Range range) {
            return sequences.count * std::max(0, range.end - range.begin);
        };
        seen_q += length(band.queries(0, band.k_len));
        seen_k += length(band.keys(0, band.q_len));
    }
    const auto rows_q = static_cast<double>(shape.rows_q()); // of all tensors
    const auto rows_k = static_cast<double>(shape.rows_k());
    const auto element = static_cast<double>(size_of(dtype));
    const auto heads_q = static_cast<double>(shape.heads_q);
    const auto heads_kv = static_cast<double>(shape.heads_kv);
    const auto d = static_cast<double>(shape.head_dim);
    const auto dv = static_cast<double>(shape.head_dim_v);
    const auto key_element = static_cast<double>(size_of(shape.cache_dtype.value_or(dtype)));
    const double of_bias =
        shape.dbias ? element * heads_q * static_cast<double>(shape.seqlen_q) * static_cast<double>(shape.seqlen_k) : 0;
    const double bias = shape.bias ? element * heads_q * counted_pairs(shape) / static_cast<double>(shape.batch) : 0;
    const double inputs =
        element * heads_q * seen_q * d + key_element * heads_kv * seen_k * (shape.latent ? d : d + dv) + bias;
    if (!backward) {
        return {inputs, heads_q * rows_q * (output_element_bytes(dtype) * dv + statistic)};
    }
    return {inputs + heads_q * seen_q * (2 * element * dv + statistic),
            element * (heads_q * rows_q * d + heads_kv * rows_k * (d + dv)) + of_bias};
}

Traffic pass_traffic(const Problem& problem, const PassPlan& pass)
{
    const Rows rows = rows_of(problem, pass.launch);
    const auto element = static_cast<double>(size_of(problem.dtype));
    const auto key_element = static_cast<double>(size_of(problem.k.dtype)); // of a cache, fewer
    const auto d = static_cast<double>(problem.head_dim);
    const auto dv = static_cast<double>(problem.head_dim_v);
    const auto heads_q = static_cast<double>(problem.heads_q);
    const auto heads_kv = static_cast<double>(problem.heads_kv);
    constexpr double sum = 4; // bytes, float32
    const bool is_on_host = pass.machine == Machine::host;
    const double streamed_by_head = rows.streamed / pass.heads_on_same_keys();
    switch (pass.launch.pass) {
    case Pass::forward:
        // Q stays, K and V stream past; O and LSE. Where a tensor-core kernel takes V in parts, Q and K come with each.
        return {heads_q * (pass.value_parts * (rows.resident * element + streamed_by_head * key_element) * d +
                           streamed_by_head * key_element * dv),
                heads_q * rows.resident * (output_element_bytes(problem.dtype) * dv + statistic)};
    case Pass::backward_query:
        // Q, dO, O and LSE stay, K and V stream past; dQ, D and the residual.
        return {heads_q * (rows.resident * (element * (d + 2 * dv) + statistic) + rows.streamed * element * (d + dv)),
                heads_q * rows.resident * (element * d + 2 * statistic)};
    case Pass::backward_key: {
        // K and V stay; Q, dO, LSE, D and the residual of every query head of the group stream past; dK and dV. Where
        // dV is summed before dK, all but V twice.
        const double streamed = heads_q * rows.streamed * (element * (d + dv) + 3 * statistic);
        const double again = pass.sums_apart ? heads_kv * rows.resident * element * d + streamed : 0;
        return {heads_kv * rows.resident * element * (d + dv) + streamed + again,
                heads_kv * rows.resident * element * (d + dv)};
    }
    case Pass::backward_start: {
        // dO and O; D and the residual. Where dQ itself is what is added to, zeros for it; else LSE is read.
        const double zeros = is_on_host ? element * d : 0;
        const double lse = is_on_host ? 0 : statistic;
        return {heads_q * rows.resident * (2 * element * dv + lse), heads_q * rows.resident * (zeros + 2 * statistic)};
    }
    case Pass::backward_end: // the sums of dQ; dQ
        return {heads_q * rows.resident * sum * pass.launch.depth, heads_q * rows.resident * element * d};
    case Pass::backward_once: {
        if (pass.is_gradients_of_few()) {
            // K and V; Q, dO, O and LSE for each part of the keys; dK, dV and dQ. Where there are
            // parts, their sums of dQ are written and read.
            const bool has_parts = pass.launch.resident_rows < problem.seqlen_k;
            const double sums = has_parts ? heads_q * rows.streamed * sum * pass.launch.depth : 0;
            const std::int64_t rows_q = problem.q.elements() / std::max<std::int64_t>(1, problem.head_dim);
            return {heads_kv * rows.resident * element * (d + dv) +
                        heads_q * rows.streamed * (element * (d + 2 * dv) + statistic) + sums,
                    heads_kv * rows.resident * element * (d + dv) + static_cast<double>(rows_q) * element * d + sums};
        }
        // As backward_key, on a GPU with two statistics; and the sums of dQ are read and written for each block of
        // keys.
        const double sums = heads_q * rows.streamed * sum * (is_on_host ? d : pass.launch.depth);
        const double statistics = (is_on_host ? 3 : 2) * statistic;
        return {heads_kv * rows.resident * element * (d + dv) +
                    heads_q * rows.streamed * (element * (d + dv) + statistics) + sums,
                heads_kv * rows.resident * element * (d + dv) + sums};
    }
    case Pass::backward_bias: {
        // K and V of each tile; Q, dO, LSE, D and the residual, which mostly stay for the next; dbias.
        const double streamed = rows.streamed * element * (d + dv);
        return {heads_q * (rows.resident * (element * (d + dv) + 3 * statistic) + streamed),
                static_cast<double>(size_of(problem.dbias.dtype)) * static_cast<double>(problem.dbias.elements())};
    }
    case Pass::backward_sink:
        break;
    }
    return {}; // a shape has none
}

namespace {

/// The bias of all pairs of the tiles that a pass computes.
Traffic bias_traffic(const Problem& problem, const PassPlan& pass)
{
    const Pass of = pass.launch.pass;
    const bool has_scores = of == Pass::forward || of == Pass::backward_query || of == Pass::backward_key ||
                            of == Pass::backward_once || of == Pass::backward_bias;
    if (!problem.options.bias || !has_scores) {
        return {};
    }
    const int times = pass.sums_apart ? 2 : pass.value_parts; // that S is computed
    const double pairs = times * rows_of(problem, pass.launch).streamed * pass.launch.resident_rows;
    return {static_cast<double>(size_of(problem.options.bias.dtype)) * static_cast<double>(problem.heads_q) * pairs, 0};
}

} // namespace

Traffic tile_traffic(const Problem& problem, const Plan& plan)
{
    Traffic all;
    for (const PassPlan& pass : plan.passes) {
        all += pass_traffic(problem, pass);
        all += bias_traffic(problem, pass);
    }
    if (plan.splits > 1) {
        // Each part of the keys has the queries again and leaves float32 rows of o and LSE, which the merge reads.
        const auto element = static_cast<double>(size_of(problem.dtype));
        const auto rows = static_cast<double>(problem.lse.elements());
        all.read += (plan.splits - 1) * rows * element * static_cast<double>(problem.head_dim);
        const auto partial = static_cast<double>(plan.partial_bytes);
        all += {partial, partial};
    }
    if (plan.head_splits > 1) {
        // Each part of a group has K and V again and leaves float32 sums, which the last part's crew reads.
        const auto element = static_cast<double>(size_of(problem.dtype));
        all.read += (plan.head_splits - 1) * element * static_cast<double>(problem.k.elements() + problem.v.elements());
        const auto partial = static_cast<double>(plan.partial_bytes);
        all += {partial, partial};
    }
    return all;
}

Growth growth(const Shape& shape, double on_chip_elements)
{
    const auto d = static_cast<double>(shape.head_dim);
    const auto heads = static_cast<double>(shape.heads_q);
    Growth all;
    for (const Sequences& same : sequences_of(shape)) {
        const auto q = static_cast<double>(same.band.q_len);
        const auto k = static_cast<double>(same.band.k_len);
        const double sequences = heads * same.count;
        all.standard += sequences * (q * d + q * k);
        all.tiles += sequences * q * k * d * d / on_chip_elements;
    }
    return all;
}

} // namespace flashomp::cost
