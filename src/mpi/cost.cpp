#include "cost.hpp"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <vector>

namespace flashomp::mpi {

namespace {

/// Bytes of K and V of all ranks, and of dK and dV in float32.
double key_bytes(const CostShape& s)
{
    return s.batch * s.length_k * s.heads_kv * (s.head_dim + s.head_dim_v) * s.element_bytes;
}

double gradient_bytes(const CostShape& s)
{
    return s.is_backward ? s.batch * s.length_k * s.heads_kv * (s.head_dim + s.head_dim_v) * 4.0 : 0.0;
}

/// Of sharing out heads: q and o, in backward q, dout, o and dq.
double query_bytes(const CostShape& s)
{
    const double of_q = s.head_dim, of_o = s.head_dim_v;
    return s.batch * s.length_q * s.heads_q * (s.is_backward ? 2.0 * (of_q + of_o) : of_q + of_o) * s.element_bytes;
}

/// Two products a pair in forward, five in backward, each a multiplication and an addition.
double flops(const CostShape& s, double pairs)
{
    const double products = s.is_backward ? 3.0 * s.head_dim + 2.0 * s.head_dim_v : s.head_dim + s.head_dim_v;
    return 2.0 * pairs * s.batch * s.heads_q * products;
}

} // namespace

Cost cost_of(const CostShape& s, Scheme scheme, int heads_ranks, const Speeds& speeds)
{
    const double members = scheme == Scheme::ulysses ? s.ranks : std::max(heads_ranks, 1);
    const double groups = s.ranks / members;
    // A block is the keys of a group, and of the heads that a member has of them: not fewer than one.
    const double share = std::max(1.0 / members, 1.0 / s.heads_kv);
    const double block = (key_bytes(s) + gradient_bytes(s)) / groups * share;
    // Groups see what their members see: of more members fewer blocks are others'.
    const double blocks = std::min(s.blocks_of_busiest / members, groups - 1);
    // Sharing out heads evens out what masks leave uneven within a group.
    const double even = s.pairs_of_all / s.ranks;
    const double pairs = even + (s.pairs_of_busiest - even) * (groups - 1) / std::max(s.ranks - 1.0, 1.0);
    const double pairs_of_parts = blocks * speeds.keys_of_part * s.length_q / s.ranks;
    const double most_heads = std::ceil(s.heads_q / members) * members / s.heads_q; // of a member, in shares

    Cost cost;
    cost.seconds_computing = flops(s, (pairs + pairs_of_parts) * most_heads) / speeds.flops;
    // Blocks of a gather are under way together: no step waits for another one's message.
    const double messages = scheme == Scheme::all_gather ? std::min(blocks, 1.0) : blocks;
    const double in_ring = blocks * block / speeds.bytes + messages * speeds.message;
    const double shared = members == 1 ? 0.0
                                       : (query_bytes(s) + key_bytes(s) * std::max(share * members, 1.0)) / s.ranks *
                                                 (members - 1) / members / speeds.bytes +
                                             4.0 * (members - 1) * speeds.message;
    cost.seconds_sending = in_ring + shared;
    // A ring sends while it computes; a gather, too, but what it sends comes at once. Nothing goes on beside an
    // exchange of heads.
    const double one_step = blocks > 0 ? cost.seconds_computing / (blocks + 1) : 0.0;
    cost.seconds = shared + std::max(cost.seconds_computing, in_ring + one_step);
    cost.bytes_of_memory = 2.0 * block;
    if (scheme == Scheme::all_gather) {
        cost.bytes_of_memory = (blocks + 1.0) * key_bytes(s) / s.ranks + 4.0 * gradient_bytes(s) / s.ranks;
    }
    return cost;
}

Choice cheapest(const CostShape& s, const Speeds& speeds)
{
    struct Candidate {
        Scheme scheme;
        int heads_ranks;
        Cost cost;
    };
    std::vector<Candidate> candidates;
    const auto consider = [&](Scheme scheme, int heads_ranks) {
        candidates.push_back({scheme, heads_ranks, cost_of(s, scheme, heads_ranks, speeds)});
    };
    consider(Scheme::ring, 1);
    consider(Scheme::all_gather, 1);
    const bool is_too_large = candidates.back().cost.bytes_of_memory > speeds.gather_bytes;
    if (is_too_large) {
        candidates.pop_back();
    }
    for (int members = 2; members <= s.ranks && members <= s.heads_q; ++members) {
        if (s.ranks % members == 0) {
            consider(members == s.ranks ? Scheme::ulysses : Scheme::grid, members);
        }
    }
    const auto best =
        std::min_element(candidates.begin(), candidates.end(),
                         [](const Candidate& a, const Candidate& b) { return a.cost.seconds < b.cost.seconds; });
    std::string why = fmt::format("the model's fastest: {:.3g} s computing, {:.3g} s sending",
                                  best->cost.seconds_computing, best->cost.seconds_sending);
    for (const Candidate& other : candidates) {
        if (&other != &*best) {
            why += fmt::format("; {}{} {:.3g} s", name_of(other.scheme),
                               other.scheme == Scheme::grid ? fmt::format(" of {}", other.heads_ranks) : "",
                               other.cost.seconds);
        }
    }
    why += fmt::format(", this {:.3g} s", best->cost.seconds);
    why += is_too_large ? "; a gather of K and V would take too much memory" : "";
    return {best->scheme, best->heads_ranks, why};
}

} // namespace flashomp::mpi
