// Who computes, waits and sends when ranks share a call: the schedule played out hop by hop.
//
// What the model takes for granted:
//   - Each rank has one link of full duplex: it sends and receives at once, each at the whole bandwidth, whoever the
//     partners are. Messages of one rank in one direction follow one another. Nothing else is on the network.
//   - A message takes the latency and then its bytes over the bandwidth.
//   - Messages take no time from computing, and computing none from them: the overlap is complete.
//   - A ring is double buffered, as flashomp::mpi has it: a rank posts the messages of a hop when it begins the hop,
//     computes, and begins the next hop when both are done. A message moves when both its ranks have begun the hop.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

namespace flashomp::cost {

struct Links {
    double bandwidth = 0; ///< bytes/s of a rank, in each direction; infinite is allowed
    double latency = 0;   ///< seconds a message
};

/// One rank, from the beginning of the schedule to its end: computing + waiting + idle are all of its time.
struct RankTimes {
    double computing = 0;
    double waiting = 0;            ///< for messages or their other ranks, with nothing to compute
    double idle = 0;               ///< after its own last hop, until the last rank is done
    double sending = 0;            ///< its link sends meanwhile; computing or not
    double sent = 0, received = 0; ///< bytes
    double end = 0;                ///< of its last hop so far
};

/// One hop of all rings, or what all ranks do together.
struct Phase {
    std::string_view name; ///< "hop", "all-to-all", ...
    double bytes = 0;      ///< the most that a rank sends in it; of a gather, in one message
    double computing_least = 0, computing_most = 0, sending_most = 0, waiting_most = 0; ///< seconds, over ranks
    double end = 0;                                                                     ///< of the last rank
};

struct Schedule {
    explicit Schedule(std::int64_t count) : ranks(static_cast<std::size_t>(count)) {}

    std::vector<RankTimes> ranks;
    std::vector<Phase> phases;
    double seconds = 0; ///< until the last rank is done; finish() says

    /// Says when all is over, and how long each rank was idle then.
    void finish();
};

/// Which way blocks go round a ring, and how far.
struct Travel {
    std::int64_t direction = 1;      ///< to place p + 1, or -1: to place p - 1
    std::vector<std::int64_t> stops; ///< places beyond its home that each block goes on to
};

/// Each block travels to the last place that has a visible pair with it, beyond those that have none; all of them in
/// the direction in which there are fewer hops.
[[nodiscard]] Travel travel(std::int64_t places,
                            const std::function<bool(std::int64_t place, std::int64_t block)>& needs);

/// Ranks first, first + stride, ... of a schedule, on which blocks of keys go round. Block s starts at place s.
struct Ring {
    std::int64_t places = 1, first = 0, stride = 1;
    std::size_t phase = 0; ///< of the schedule, where its first hop is
    /// Seconds of the call for the queries of a place and the keys of a block; 0 where the mask hides all pairs.
    std::function<double(std::int64_t place, std::int64_t block)> computing;
    std::function<bool(std::int64_t place, std::int64_t block)> needs; ///< whether there are pairs
    Travel travel;
    std::vector<double> key_bytes;      ///< K and V of each block
    std::vector<double> gradient_bytes; ///< dK and dV of each block; none in the forward pass

    /// The block of a place at a hop. Hops are at most as many as places.
    [[nodiscard]] std::int64_t block_at(std::int64_t place, std::int64_t hop) const
    {
        return (place - travel.direction * hop + 2 * places) % places;
    }
    [[nodiscard]] std::int64_t next(std::int64_t place) const { return (place + travel.direction + places) % places; }
};

/// At hop h place p has block p - h, or p + h. K and V go on to the next place meanwhile. In the backward pass dK and
/// dV follow their block one hop behind, and go from its last stop straight home.
void play_ring(Schedule& schedule, const Ring& ring, const Links& links);

/// The same calls in the same order, but blocks go from home to every place that needs them, all at once: a place waits
/// for the block of its next call alone. In the backward pass a part of dK and dV goes home from each place when it is
/// computed, and home waits for it before its own next call, as it adds parts in the order of hops.
void play_gather(Schedule& schedule, const Ring& ring, const Links& links);

/// What a rank sends and receives when all of a group send to all.
struct Exchange {
    double sent = 0, received = 0; ///< bytes
    double messages_sent = 0, messages_received = 0;
};

/// Ranks [first, first + exchanges.size()) exchange, from when the last of them has come, and do nothing else.
void play_exchange(Schedule& schedule, std::string_view name, std::int64_t first,
                   const std::vector<Exchange>& exchanges, const Links& links, std::size_t phase);

} // namespace flashomp::cost
