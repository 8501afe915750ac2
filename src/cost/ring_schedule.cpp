#include "ring_schedule.hpp"

#include <algorithm>
#include <cstddef>

namespace flashomp::cost {

namespace {

std::size_t at(std::int64_t index)
{
    return static_cast<std::size_t>(index);
}

/// What one rank does in one phase.
struct Turn {
    double begin = 0;     ///< of the rank
    double computing = 0; ///< seconds
    double ready = 0;     ///< when it and all its partners have begun
    Exchange messages;
};

void send(Turn& from, Turn& to, double bytes)
{
    if (bytes <= 0) { // no rows
        return;
    }
    from.messages.sent += bytes;
    from.messages.messages_sent += 1;
    to.messages.received += bytes;
    to.messages.messages_received += 1;
    const double both = std::max(from.begin, to.begin);
    from.ready = std::max(from.ready, both);
    to.ready = std::max(to.ready, both);
}

double seconds_of(double bytes, double messages, const Links& links)
{
    return messages * links.latency + bytes / links.bandwidth;
}

Phase& phase_at(Schedule& schedule, std::size_t index, std::string_view name)
{
    if (schedule.phases.size() <= index) {
        schedule.phases.resize(index + 1);
    }
    Phase& phase = schedule.phases[index];
    if (phase.name.empty()) {
        phase.name = name;
        phase.computing_least = -1; // of no rank so far
    }
    return phase;
}

/// Adds a turn to its rank's account and to the phase.
void take(RankTimes& rank, Phase& phase, const Turn& turn, const Links& links, double rounds)
{
    const Exchange& m = turn.messages;
    const double sending = seconds_of(m.sent, m.messages_sent, links);
    const double receiving = seconds_of(m.received, m.messages_received, links);
    const bool has_messages = m.messages_sent + m.messages_received > 0;
    const double moved = has_messages ? std::max(turn.begin, turn.ready) + std::max(sending, receiving) : turn.begin;
    const double end = std::max(turn.begin + turn.computing, moved);
    const double waiting = end - turn.begin - turn.computing;
    rank.computing += turn.computing;
    rank.waiting += waiting;
    rank.sending += sending;
    rank.sent += m.sent;
    rank.received += m.received;
    rank.end = end;
    phase.bytes = std::max(phase.bytes, m.sent / rounds);
    phase.computing_least =
        phase.computing_least < 0 ? turn.computing : std::min(phase.computing_least, turn.computing);
    phase.computing_most = std::max(phase.computing_most, turn.computing);
    phase.sending_most = std::max(phase.sending_most, sending);
    phase.waiting_most = std::max(phase.waiting_most, waiting);
    phase.end = std::max(phase.end, end);
}

} // namespace

void Schedule::finish()
{
    for (const RankTimes& rank : ranks) {
        seconds = std::max(seconds, rank.end);
    }
    for (RankTimes& rank : ranks) {
        rank.idle = seconds - rank.end;
    }
}

std::vector<std::int64_t> stops(std::int64_t places, const std::function<bool(std::int64_t, std::int64_t)>& needs)
{
    std::vector<std::int64_t> all;
    for (std::int64_t block = 0; block < places; ++block) {
        std::int64_t stop = places - 1;
        while (stop > 0 && !needs((block + stop) % places, block)) {
            --stop;
        }
        all.push_back(stop);
    }
    return all;
}

void play_ring(Schedule& schedule, const Ring& ring, const Links& links)
{
    const bool is_backward = !ring.gradient_bytes.empty();
    const std::int64_t farthest = *std::max_element(ring.stops.begin(), ring.stops.end());
    const std::string_view name = ring.places > 1 ? "hop" : "computing";
    const std::int64_t hops = farthest + 1 + (is_backward && farthest > 0 ? 1 : 0); // the way home
    const auto block_at = [&](std::int64_t place, std::int64_t hop) {
        return (place - hop + 2 * ring.places) % ring.places; // hop is at most the number of places
    };
    std::vector<Turn> turns(at(ring.places));
    for (std::int64_t hop = 0; hop < hops; ++hop) {
        for (std::int64_t place = 0; place < ring.places; ++place) {
            Turn& turn = turns[at(place)];
            turn = {};
            turn.begin = schedule.ranks[at(ring.first + place * ring.stride)].end;
            const std::int64_t block = block_at(place, hop);
            turn.computing = hop <= ring.stops[at(block)] ? ring.computing(place, block) : 0;
        }
        for (std::int64_t place = 0; place < ring.places; ++place) {
            const std::int64_t next = (place + 1) % ring.places;
            const std::int64_t block = block_at(place, hop);
            if (hop < ring.stops[at(block)]) {
                send(turns[at(place)], turns[at(next)], ring.key_bytes[at(block)]);
            }
            if (!is_backward || hop == 0) {
                continue;
            }
            const std::int64_t before = block_at(place, hop - 1); // its sums are complete up to here
            const std::int64_t stop = ring.stops[at(before)];
            if (stop > 0 && hop - 1 <= stop) {
                send(turns[at(place)], turns[at(hop - 1 < stop ? next : before)], ring.gradient_bytes[at(before)]);
            }
        }
        Phase& phase = phase_at(schedule, ring.phase + at(hop), hop > farthest ? "home" : name);
        for (std::int64_t place = 0; place < ring.places; ++place) {
            take(schedule.ranks[at(ring.first + place * ring.stride)], phase, turns[at(place)], links, 1);
        }
    }
}

void play_exchange(Schedule& schedule, std::string_view name, std::int64_t first,
                   const std::vector<Exchange>& exchanges, const Links& links, std::size_t phase, double rounds)
{
    double begin = 0;
    for (std::size_t i = 0; i < exchanges.size(); ++i) {
        begin = std::max(begin, schedule.ranks[at(first) + i].end);
    }
    for (std::size_t i = 0; i < exchanges.size(); ++i) {
        RankTimes& rank = schedule.ranks[at(first) + i];
        take(rank, phase_at(schedule, phase, name), {rank.end, 0, begin, exchanges[i]}, links, rounds);
    }
}

void play_computing(Schedule& schedule, const std::vector<double>& seconds, std::size_t phase)
{
    for (std::size_t i = 0; i < seconds.size(); ++i) {
        RankTimes& rank = schedule.ranks[i];
        take(rank, phase_at(schedule, phase, "computing"), {rank.end, seconds[i], 0, {}}, Links{1, 0}, 1);
    }
}

} // namespace flashomp::cost
