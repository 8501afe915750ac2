#include "ring_schedule.hpp"

#include <algorithm>
#include <cstddef>
#include <numeric>

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
void take(RankTimes& rank, Phase& phase, const Turn& turn, const Links& links)
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
    phase.bytes = std::max(phase.bytes, m.sent);
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

Travel travel(std::int64_t places, const std::function<bool(std::int64_t, std::int64_t)>& needs)
{
    const auto in_direction = [&](std::int64_t direction) {
        Travel one{direction, {}};
        for (std::int64_t block = 0; block < places; ++block) {
            std::int64_t stop = places - 1;
            while (stop > 0 && !needs((block + direction * stop + places) % places, block)) {
                --stop;
            }
            one.stops.push_back(stop);
        }
        return one;
    };
    const auto hops = [](const Travel& one) {
        return std::accumulate(one.stops.begin(), one.stops.end(), std::int64_t{0});
    };
    Travel up = in_direction(1), down = in_direction(-1);
    return hops(down) < hops(up) ? down : up;
}

void play_ring(Schedule& schedule, const Ring& ring, const Links& links)
{
    const bool is_backward = !ring.gradient_bytes.empty();
    const std::vector<std::int64_t>& stops = ring.travel.stops;
    const std::int64_t farthest = *std::max_element(stops.begin(), stops.end());
    const std::string_view name = ring.places > 1 ? "hop" : "computing";
    const std::int64_t hops = farthest + 1 + (is_backward && farthest > 0 ? 1 : 0); // the way home
    std::vector<Turn> turns(at(ring.places));
    for (std::int64_t hop = 0; hop < hops; ++hop) {
        for (std::int64_t place = 0; place < ring.places; ++place) {
            Turn& turn = turns[at(place)];
            turn = {};
            turn.begin = schedule.ranks[at(ring.first + place * ring.stride)].end;
            const std::int64_t block = ring.block_at(place, hop);
            turn.computing = hop <= stops[at(block)] ? ring.computing(place, block) : 0;
        }
        for (std::int64_t place = 0; place < ring.places; ++place) {
            const std::int64_t next = ring.next(place);
            const std::int64_t block = ring.block_at(place, hop);
            if (hop < stops[at(block)]) {
                send(turns[at(place)], turns[at(next)], ring.key_bytes[at(block)]);
            }
            if (!is_backward || hop == 0) {
                continue;
            }
            const std::int64_t before = ring.block_at(place, hop - 1); // its sums are complete up to here
            const std::int64_t stop = stops[at(before)];
            if (stop > 0 && hop - 1 <= stop) {
                send(turns[at(place)], turns[at(hop - 1 < stop ? next : before)], ring.gradient_bytes[at(before)]);
            }
        }
        Phase& phase = phase_at(schedule, ring.phase + at(hop), hop > farthest ? "home" : name);
        for (std::int64_t place = 0; place < ring.places; ++place) {
            take(schedule.ranks[at(ring.first + place * ring.stride)], phase, turns[at(place)], links);
        }
    }
}

namespace {

/// Links of the places of a gather, each of which carries one message after the other out and in.
class GatherLinks {
public:
    GatherLinks(std::int64_t places, const Links& links) : links_(links), out_(at(places)), in_(at(places)) {}

    /// When a message that can leave at `begin` has arrived.
    double move(std::int64_t from, std::int64_t to, double begin, double bytes)
    {
        const double end = std::max({begin, out_[at(from)], in_[at(to)]}) + seconds(bytes);
        out_[at(from)] = in_[at(to)] = end;
        return end;
    }
    [[nodiscard]] double seconds(double bytes) const { return seconds_of(bytes, 1, links_); }
    [[nodiscard]] double out_free(std::int64_t place) const { return out_[at(place)]; }

private:
    Links links_;
    std::vector<double> out_, in_;
};

/// A gather as it is played: who is where in it.
class Gather {
public:
    Gather(Schedule& schedule, const Ring& ring, const Links& links)
        : schedule_(schedule), ring_(ring), links_(ring.places, links)
    {
    }

    /// Posts K and V of all hops.
    void send_keys(Phase& phase)
    {
        for (std::int64_t hop = 1; hop < ring_.places; ++hop) {
            for (std::int64_t place = 0; place < ring_.places; ++place) {
                const std::int64_t block = ring_.block_at(place, hop);
                if (is_sent(place, block)) {
                    send(block, place, 0, ring_.key_bytes[at(block)], phase);
                }
            }
        }
    }

    void compute(std::int64_t place, std::int64_t hop, double arrived, Phase& phase)
    {
        wait(place, arrived, phase);
        const double computing = ring_.computing(place, ring_.block_at(place, hop));
        rank_of(place).computing += computing;
        rank_of(place).end += computing;
        phase.computing_least = phase.computing_least < 0 ? computing : std::min(phase.computing_least, computing);
        phase.computing_most = std::max(phase.computing_most, computing);
        phase.end = std::max(phase.end, rank_of(place).end);
    }

    /// Sends the parts of dK and dV of a hop home, which waits for them.
    void send_home(std::int64_t hop, Phase& phase)
    {
        std::vector<double> home(at(ring_.places));
        for (std::int64_t place = 0; place < ring_.places; ++place) {
            const std::int64_t block = ring_.block_at(place, hop);
            if (is_sent(place, block)) {
                home[at(block)] = send(place, block, rank_of(place).end, ring_.gradient_bytes[at(block)], phase);
            }
        }
        for (std::int64_t place = 0; place < ring_.places; ++place) {
            wait(place, home[at(place)], phase);
        }
    }

    /// A rank's own messages have left before its call ends.
    void finish(Phase& phase)
    {
        for (std::int64_t place = 0; place < ring_.places; ++place) {
            wait(place, links_.out_free(place), phase);
        }
    }

    [[nodiscard]] bool is_sent(std::int64_t place, std::int64_t block) const
    {
        return place != block && ring_.key_bytes[at(block)] > 0 && ring_.needs(place, block);
    }

private:
    [[nodiscard]] RankTimes& rank_of(std::int64_t place) const
    {
        return schedule_.ranks[at(ring_.first + place * ring_.stride)];
    }

    double send(std::int64_t from, std::int64_t to, double begin, double bytes, Phase& phase)
    {
        const double end = links_.move(from, to, begin, bytes);
        rank_of(from).sending += links_.seconds(bytes);
        rank_of(from).sent += bytes;
        rank_of(to).received += bytes;
        phase.bytes = std::max(phase.bytes, bytes);
        phase.sending_most = std::max(phase.sending_most, links_.seconds(bytes));
        phase.end = std::max(phase.end, end);
        return end;
    }

    void wait(std::int64_t place, double until, Phase& phase)
    {
        RankTimes& rank = rank_of(place);
        const double waiting = std::max(0.0, until - rank.end);
        rank.waiting += waiting;
        rank.end += waiting;
        phase.waiting_most = std::max(phase.waiting_most, waiting);
        phase.end = std::max(phase.end, rank.end);
    }

    Schedule& schedule_;
    const Ring& ring_;
    GatherLinks links_;
};

} // namespace

void play_gather(Schedule& schedule, const Ring& ring, const Links& links)
{
    Gather gather(schedule, ring, links);
    Phase& posted = phase_at(schedule, ring.phase, "gather");
    posted.computing_least = 0;
    gather.send_keys(posted);
    GatherLinks again(ring.places, links); // the arrivals of all hops would take memory of the ranks' square
    for (std::int64_t hop = 0; hop < ring.places; ++hop) {
        Phase& phase = phase_at(schedule, ring.phase + 1 + at(hop), "hop");
        for (std::int64_t place = 0; place < ring.places; ++place) {
            const std::int64_t block = ring.block_at(place, hop);
            const bool arrives = gather.is_sent(place, block);
            gather.compute(place, hop, arrives ? again.move(block, place, 0, ring.key_bytes[at(block)]) : 0, phase);
        }
        if (!ring.gradient_bytes.empty()) {
            gather.send_home(hop, phase);
        }
    }
    gather.finish(schedule.phases.back());
}

void play_exchange(Schedule& schedule, std::string_view name, std::int64_t first,
                   const std::vector<Exchange>& exchanges, const Links& links, std::size_t phase)
{
    double begin = 0;
    for (std::size_t i = 0; i < exchanges.size(); ++i) {
        begin = std::max(begin, schedule.ranks[at(first) + i].end);
    }
    for (std::size_t i = 0; i < exchanges.size(); ++i) {
        RankTimes& rank = schedule.ranks[at(first) + i];
        take(rank, phase_at(schedule, phase, name), {rank.end, 0, begin, exchanges[i]}, links);
    }
}

} // namespace flashomp::cost
