#include "sharing.hpp"

#include <algorithm>
#include <limits>

namespace flashomp::cost {

namespace {

constexpr double statistic = 4; // bytes of a float32

} // namespace

Sharing::RowBytes Sharing::row_bytes(const Shape& shape, DType dtype, bool backward)
{
    const auto element = static_cast<double>(size_of(dtype));
    const auto result = static_cast<double>(size_of(output_type_of(dtype)));
    const auto d = static_cast<double>(shape.head_dim);
    const auto dv = static_cast<double>(shape.head_dim_v);
    RowBytes bytes;
    bytes.keys = element * (d + dv);
    if (!backward) {
        bytes.queries = element * d;
        bytes.query_results = result * dv + statistic;
        bytes.query_sums = statistic * (dv + 1);
        return bytes;
    }
    bytes.queries = element * d + 2 * result * dv + statistic;
    bytes.query_results = result * d;
    bytes.query_sums = statistic * d;
    bytes.key_results = result * (d + dv);
    bytes.key_sums = statistic * (d + dv);
    return bytes;
}

Sharing::Sharing(const Shape& shape, DType dtype, bool backward, double flops_a_pair, const Scheme& scheme,
                 const Cluster& cluster)
    : shape_(shape), scheme_(scheme), cluster_(cluster), backward_(backward), flops_a_pair_(flops_a_pair),
      row_(row_bytes(shape, dtype, backward)), pairs_(shape, scheme.layout, scheme.places()),
      shards_(shape, scheme.layout, scheme.ranks), entries_(static_cast<double>(pairs_.entries()))
{
    travel_ = travel(scheme.places(), [this](std::int64_t place, std::int64_t block) { return needs(place, block); });
}

Schedule Sharing::play() const
{
    Schedule schedule(scheme_.ranks);
    if (scheme_.exchanging == Exchanging::gather) {
        play_gather(schedule, ring_of(0, 0), cluster_.links);
    } else {
        exchange_heads(schedule, "all-to-all", /*home=*/false);
        const std::size_t first_hop = schedule.phases.size();
        for (std::int64_t member = 0; member < scheme_.heads_ranks; ++member) {
            play_ring(schedule, ring_of(member, first_hop), cluster_.links);
        }
        exchange_heads(schedule, "all-to-all back", /*home=*/true);
    }
    schedule.finish();
    return schedule;
}

double Sharing::ring_seconds(bool with_links) const
{
    Schedule schedule(scheme_.ranks);
    play_ring(schedule, ring_of(0, 0), with_links ? cluster_.links : Links{std::numeric_limits<double>::infinity(), 0});
    schedule.finish();
    return schedule.seconds;
}

double Sharing::seconds_alone() const
{
    double pairs = 0;
    for (std::int64_t place = 0; place < scheme_.places(); ++place) {
        pairs += static_cast<double>(pairs_.pairs(place));
    }
    return seconds(pairs, static_cast<double>(shape_.packed ? shape_.rows_q() : shape_.seqlen_q),
                   static_cast<double>(shape_.packed ? shape_.rows_k() : shape_.seqlen_k), all_heads(),
                   /*is_part=*/false);
}

RankMemory Sharing::memory() const
{
    double rows_q = 0, rows_k = 0;
    for (std::int64_t rank = 0; rank < scheme_.ranks; ++rank) {
        rows_q = std::max(rows_q, rows_of_q(shards_, rank));
        rows_k = std::max(rows_k, rows_of_k(shards_, rank));
    }
    double place_rows_q = 0, place_rows_k = 0;
    for (std::int64_t place = 0; place < scheme_.places(); ++place) {
        place_rows_q = std::max(place_rows_q, rows_of_q(pairs_, place));
        place_rows_k = std::max(place_rows_k, rows_of_k(pairs_, place));
    }
    Heads heads;
    for (std::int64_t member = 0; member < scheme_.heads_ranks; ++member) {
        const Heads of_member = heads_of(shape_, member, scheme_.heads_ranks);
        heads = {std::max(heads.queries, of_member.queries), std::max(heads.keys, of_member.keys)};
    }
    const Heads all = all_heads();
    RankMemory memory;
    memory.shards =
        rows_q * all.queries * (row_.queries + row_.query_results) + rows_k * all.keys * (row_.keys + row_.key_results);
    if (scheme_.ranks == 1) {
        return memory;
    }
    if (scheme_.exchanging == Exchanging::gather) {
        double most = 0;
        for (std::int64_t rank = 0; rank < scheme_.ranks; ++rank) {
            double rows = 0;
            for (std::int64_t block = 0; block < scheme_.ranks; ++block) {
                rows += block != rank && needs(rank, block) ? rows_of_k(shards_, block) : 0;
            }
            most = std::max(most, rows);
        }
        if (most > 0) {
            memory.buffers = most * all.keys * row_.keys + 4 * rows_k * all.keys * row_.key_sums;
            memory.partials = 2 * rows_q * all.queries * row_.query_sums;
        }
        return memory;
    }
    if (scheme_.heads_ranks > 1) {
        memory.buffers += place_rows_q * heads.queries * (row_.queries + row_.query_results) +
                          place_rows_k * heads.keys * (row_.keys + row_.key_sums);
        memory.buffers +=
            std::max(rows_q * all.queries * row_.queries + rows_k * key_heads_of_group() * row_.keys,
                     rows_q * all.queries * row_.query_results + rows_k * key_heads_of_group() * row_.key_sums);
    }
    const std::int64_t farthest = *std::max_element(travel_.stops.begin(), travel_.stops.end());
    if (farthest > 0) {
        memory.buffers += place_rows_k * heads.keys *
                          (static_cast<double>(std::min<std::int64_t>(farthest, 2)) * row_.keys + 3 * row_.key_sums);
        memory.partials = 2 * place_rows_q * heads.queries * row_.query_sums;
    }
    return memory;
}

double Sharing::key_heads_of_group() const
{
    double sum = 0;
    for (std::int64_t member = 0; member < scheme_.heads_ranks; ++member) {
        sum += heads_of(shape_, member, scheme_.heads_ranks).keys;
    }
    return sum;
}

bool Sharing::keys_travel() const
{
    return *std::max_element(travel_.stops.begin(), travel_.stops.end()) > 0;
}

double Sharing::seconds(double pairs, double rows_q, double rows_k, const Heads& heads, bool is_part) const
{
    if (pairs == 0) {
        return 0;
    }
    constexpr double visits = 4; // written; read, and the sum read and written
    const double query_results = is_part ? visits * row_.query_sums : row_.query_results;
    const double key_results = is_part ? visits * row_.key_sums : row_.key_results;
    const double bytes =
        rows_q * heads.queries * (row_.queries + query_results) + rows_k * heads.keys * (row_.keys + key_results);
    return entries_ * std::max(pairs * heads.queries * flops_a_pair_ / cluster_.flops, bytes / cluster_.memory);
}

Ring Sharing::ring_of(std::int64_t member, std::size_t first_hop) const
{
    const Heads heads = heads_of(shape_, member, scheme_.heads_ranks);
    const bool is_part = keys_travel();
    Ring ring;
    ring.places = scheme_.places();
    ring.first = member;
    ring.stride = scheme_.heads_ranks;
    ring.phase = first_hop;
    ring.travel = travel_;
    ring.needs = [this](std::int64_t place, std::int64_t block) { return needs(place, block); };
    ring.computing = [this, heads, is_part](std::int64_t place, std::int64_t block) {
        return seconds(static_cast<double>(pairs_.pairs(place, block)), static_cast<double>(pairs_.rows_q(place)),
                       static_cast<double>(pairs_.rows_k(block)), heads, is_part);
    };
    for (std::int64_t block = 0; block < ring.places; ++block) {
        ring.key_bytes.push_back(rows_of_k(pairs_, block) * heads.keys * row_.keys);
        if (backward_) {
            ring.gradient_bytes.push_back(rows_of_k(pairs_, block) * heads.keys * row_.key_sums);
        }
    }
    return ring;
}

void Sharing::exchange_heads(Schedule& schedule, std::string_view name, bool home) const
{
    const std::int64_t members = scheme_.heads_ranks;
    if (members == 1) {
        return;
    }
    const double of_query = home ? row_.query_results : row_.queries;
    const double of_key = home ? row_.key_sums : row_.keys;
    const std::size_t phase = schedule.phases.size();
    std::vector<Heads> heads;
    for (std::int64_t member = 0; member < members; ++member) {
        heads.push_back(heads_of(shape_, member, members));
    }
    for (std::int64_t first = 0; first < scheme_.ranks; first += members) {
        std::vector<Exchange> exchanges(heads.size());
        for (std::size_t from = 0; from < heads.size(); ++from) {
            const std::int64_t rank = first + static_cast<std::int64_t>(from);
            const double rows_q = rows_of_q(shards_, rank);
            const double rows_k = rows_of_k(shards_, rank);
            for (std::size_t to = 0; to < heads.size(); ++to) {
                const double bytes = rows_q * heads[to].queries * of_query + rows_k * heads[to].keys * of_key;
                if (to == from || bytes == 0) {
                    continue;
                }
                Exchange& sender = exchanges[home ? to : from];
                Exchange& receiver = exchanges[home ? from : to];
                sender.sent += bytes;
                sender.messages_sent += 1;
                receiver.received += bytes;
                receiver.messages_received += 1;
            }
        }
        play_exchange(schedule, name, first, exchanges, cluster_.links, phase);
    }
}

} // namespace flashomp::cost
