#include "shared_call.hpp"

#include <algorithm>
#include <cmath>

namespace flashomp::cost {

namespace {

/// See SharedCall::hiding_rows.
std::optional<std::int64_t> hiding_rows(const Shape& shape, DType dtype, bool backward, double flops_a_pair,
                                        const Scheme& scheme, const Cluster& cluster)
{
    constexpr std::int64_t most_places = 64;
    constexpr std::int64_t longest = std::int64_t{1} << 30;
    constexpr double allowed = 1.01;
    const std::int64_t places = std::min(scheme.places(), most_places);
    const double keys_a_query = static_cast<double>(shape.seqlen_k) / static_cast<double>(shape.seqlen_q);
    const auto with_rows = [&](std::int64_t rows) { // of a place
        Shape sized = shape;
        sized.seqlen_q = rows * places;
        sized.seqlen_k = std::max<std::int64_t>(1, std::llround(keys_a_query * static_cast<double>(sized.seqlen_q)));
        return sized;
    };
    const auto fits = [&](std::int64_t rows) {
        const Shape sized = with_rows(rows);
        const std::int64_t most = shape.packed ? longest / shape.batch : longest;
        return std::max(sized.seqlen_q, sized.seqlen_k) <= most;
    };
    const auto hides = [&](std::int64_t rows) {
        Scheme probe = scheme;
        probe.ranks = places * scheme.heads_ranks;
        const Sharing sharing(with_rows(rows), dtype, backward, flops_a_pair, probe, cluster);
        return sharing.ring_seconds(true) <= allowed * sharing.ring_seconds(false);
    };
    std::int64_t enough = 1;
    while (fits(enough) && !hides(enough)) {
        enough *= 2;
    }
    if (!fits(enough)) {
        return std::nullopt;
    }
    std::int64_t too_few = enough / 2;
    while (enough - too_few > 1) {
        const std::int64_t middle = too_few + (enough - too_few) / 2;
        (hides(middle) ? enough : too_few) = middle;
    }
    return enough * scheme.places();
}

} // namespace

double SharedCall::share_of_ideal() const
{
    return schedule.seconds > 0 ? alone / static_cast<double>(schedule.ranks.size()) / schedule.seconds : 1;
}

double SharedCall::imbalance() const
{
    double sum = 0, most = 0;
    for (const RankTimes& rank : schedule.ranks) {
        sum += rank.computing;
        most = std::max(most, rank.computing);
    }
    return sum > 0 ? most * static_cast<double>(schedule.ranks.size()) / sum : 1;
}

SharedCall share(const Shape& shape, DType dtype, bool backward, double flops_a_pair, const Scheme& scheme,
                 const Cluster& cluster)
{
    require_shareable(shape, scheme.ranks);
    const Sharing sharing(shape, dtype, backward, flops_a_pair, scheme, cluster);
    SharedCall call{scheme, sharing.play(), sharing.memory(), 0, sharing.seconds_alone(), std::nullopt};
    for (const Phase& phase : call.schedule.phases) {
        if (scheme.is_ulysses() || !phase.name.starts_with("all-to-all")) {
            call.hop_bytes = std::max(call.hop_bytes, phase.bytes);
        }
    }
    if (scheme.exchanging == Exchanging::ring && scheme.places() > 1) {
        call.hiding_rows = hiding_rows(shape, dtype, backward, flops_a_pair, scheme, cluster);
    }
    return call;
}

} // namespace flashomp::cost
