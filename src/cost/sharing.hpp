// One direction of a call that ranks share by one scheme: bytes sent, time by the model of ring_schedule.hpp, memory.
#pragma once

#include "ring_schedule.hpp"
#include "schemes.hpp"
#include "shape.hpp"
#include "sharding.hpp"

#include <cstdint>
#include <string_view>
#include <vector>

namespace flashomp::cost {

/// One rank's machine and its link. A call on a part of the problem takes as long as its FLOPs or its bytes of main
/// memory do at these speeds, whichever is longer; launches take no time.
struct Cluster {
    double flops = 0;  ///< FLOP/s
    double memory = 0; ///< bytes/s of main memory
    Links links;
};

/// Memory of the rank that needs most, in bytes.
struct RankMemory {
    /// Its rows of what the call is given and returns.
    double shards = 0;
    /// K and V of other ranks: in a ring two blocks, one in use and one arriving; gathered, all that it sees. In the
    /// backward pass dK and dV in float32 besides: in a ring the part just computed, the sum that leaves and the one
    /// that arrives; gathered, its own sum, the part that arrives and two that leave. In groups the rows of the group
    /// for its own heads, and its own rows packed for the others.
    double buffers = 0;
    /// Float32 results that are sums over hops, and the part to be added: o and LSE, or dQ.
    double partials = 0;

    [[nodiscard]] double total() const { return shards + buffers + partials; }
};

class Sharing {
public:
    /// `flops_a_pair`: that the passes carry out for a pair of a query and a key, for one head.
    Sharing(const Shape& shape, DType dtype, bool backward, double flops_a_pair, const Scheme& scheme,
            const Cluster& cluster);

    [[nodiscard]] Schedule play() const;

    /// Of the ring of the first of each group alone, with the cluster's links or with such as take no time.
    [[nodiscard]] double ring_seconds(bool with_links) const;

    /// Of one rank without others.
    [[nodiscard]] double seconds_alone() const;

    [[nodiscard]] RankMemory memory() const;

private:
    /// Bytes of a row and a head.
    struct RowBytes {
        double keys = 0;          ///< K and V
        double queries = 0;       ///< what else the call reads: q; backward q, o, dO and LSE
        double query_results = 0; ///< o and LSE; backward dQ
        double query_sums = 0;    ///< the same in float32
        double key_results = 0;   ///< backward: dK and dV
        double key_sums = 0;      ///< the same in float32
    };
    [[nodiscard]] static RowBytes row_bytes(const Shape& shape, DType dtype, bool backward);

    [[nodiscard]] Heads all_heads() const
    {
        return {static_cast<double>(shape_.heads_q), static_cast<double>(shape_.heads_kv)};
    }
    /// Of all entries of the batch.
    [[nodiscard]] double rows_of_q(const ShardPairs& shards, std::int64_t rank) const
    {
        return entries_ * static_cast<double>(shards.rows_q(rank));
    }
    [[nodiscard]] double rows_of_k(const ShardPairs& shards, std::int64_t rank) const
    {
        return entries_ * static_cast<double>(shards.rows_k(rank));
    }
    /// Key heads that a group has together: more than all, where ranks have the same.
    [[nodiscard]] double key_heads_of_group() const;
    [[nodiscard]] bool keys_travel() const;
    [[nodiscard]] bool needs(std::int64_t place, std::int64_t block) const { return pairs_.pairs(place, block) > 0; }

    /// Of a call with so many pairs and rows of one entry of the batch; every row is read once. Where it `is_part` of a
    /// ring, its float32 results are written, and read again together with the sums that they are added to.
    [[nodiscard]] double seconds(double pairs, double rows_q, double rows_k, const Heads& heads, bool is_part) const;

    [[nodiscard]] Ring ring_of(std::int64_t member, std::size_t first_hop) const;

    /// Rows of all heads for all rows of a group of some heads, or the results of these back home.
    void exchange_heads(Schedule& schedule, std::string_view name, bool home) const;

    Shape shape_;
    Scheme scheme_;
    Cluster cluster_;
    bool backward_;
    double flops_a_pair_;
    RowBytes row_;
    ShardPairs pairs_;  ///< of the places of a ring
    ShardPairs shards_; ///< of all ranks
    double entries_;
    Travel travel_; ///< of blocks in a ring
};

} // namespace flashomp::cost
