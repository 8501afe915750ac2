#include "ring.hpp"

#include <algorithm>
#include <array>
#include <numeric>

namespace flashomp::mpi {

Route::Route(int ranks, const std::function<bool(int, int)>& needs) : ranks_(ranks)
{
    for (int rank = 0; rank < ranks; ++rank) {
        for (int block = 0; block < ranks; ++block) {
            needs_.push_back(rank == block || needs(rank, block) ? 1 : 0);
        }
    }
    last_step_ = last_steps();
    const auto hops = [](const std::vector<int>& steps) { return std::accumulate(steps.begin(), steps.end(), 0); };
    direction_ = -1;
    std::vector<int> other = last_steps();
    if (hops(other) < hops(last_step_)) {
        last_step_ = std::move(other);
    } else {
        direction_ = 1;
    }
}

std::vector<int> Route::last_steps() const
{
    std::vector<int> steps;
    for (int block = 0; block < ranks_; ++block) {
        int last = ranks_ - 1;
        while (last > 0 && !needs(rank_of(block, last), block)) {
            --last;
        }
        steps.push_back(last);
    }
    return steps;
}

std::int64_t Place::most_bytes() const
{
    return *std::max_element(bytes.begin(), bytes.end());
}

namespace {

/// What the transports have in common: who has what when.
class OnRoute {
public:
    OnRoute(Messages& messages, Place place) : messages_(messages), place_(std::move(place)) {}

protected:
    [[nodiscard]] int block_at(int step) const { return place_.route.block_of(place_.rank, step); }
    /// Whether block_at(step) comes to this rank in that step.
    [[nodiscard]] bool is_here(int step) const
    {
        return step < place_.route.ranks() && place_.route.last_step(block_at(step)) >= step;
    }
    [[nodiscard]] bool is_needed(int step) const { return place_.route.needs(place_.rank, block_at(step)); }
    /// Whether this rank is not the last one that block_at(step) comes to.
    [[nodiscard]] bool goes_on(int step) const { return place_.route.last_step(block_at(step)) > step; }
    /// The rank of the ring that is `step` steps behind or ahead, as a rank of the communicator.
    [[nodiscard]] int behind() const { return place_.member(place_.route.block_of(place_.rank, 1)); }
    [[nodiscard]] int ahead() const { return place_.member(place_.route.rank_of(place_.rank, 1)); }

    Messages& messages_;
    Place place_;
};

/// Two buffers in turn: one is sent on and computed with while the other one is received into.
class KeysOfRing : public Keys, OnRoute {
public:
    KeysOfRing(Messages& messages, const Place& place) : OnRoute(messages, place)
    {
        for (Buffer& buffer : buffers_) {
            buffer = Buffer(messages.site(), place.most_bytes(), Stage::for_messages);
        }
    }

    std::byte* own() override { return buffers_[0].data(); }

    void begin(int step) override
    {
        if (is_here(step + 1)) {
            messages_.receive(buffer(step + 1).first(place_.bytes_of(block_at(step + 1))), behind(), Tag::keys,
                              pending_);
        }
        if (is_here(step) && goes_on(step)) {
            const BufferPart block = buffer(step).first(place_.bytes_of(block_at(step)));
            if (step == 0) {
                messages_.send(block, ahead(), Tag::keys, pending_);
            } else {
                messages_.pass_on(block, ahead(), Tag::keys, pending_);
            }
        }
    }

    std::byte* block(int step) override { return is_here(step) && is_needed(step) ? buffer(step).data() : nullptr; }
    void end(int /*step*/) override { messages_.wait(pending_); }
    void progress() override { messages_.progress(); }
    [[nodiscard]] std::int64_t bytes() const override { return buffers_[0].bytes() + buffers_[1].bytes(); }

private:
    Buffer& buffer(int step) { return buffers_.at(static_cast<std::size_t>(step % 2)); }

    std::array<Buffer, 2> buffers_;
    Pending pending_;
};

/// A buffer for each block that this rank needs.
class KeysGathered : public Keys, OnRoute {
public:
    KeysGathered(Messages& messages, const Place& place)
        : OnRoute(messages, place), arriving_(static_cast<std::size_t>(place.route.ranks()))
    {
        for (int step = 0; step < place.route.ranks(); ++step) {
            buffers_.emplace_back(messages.site(), is_needed(step) ? place.bytes_of(block_at(step)) : 0,
                                  Stage::for_messages);
        }
    }

    std::byte* own() override { return buffers_[0].data(); }

    void begin(int step) override
    {
        if (step > 0) {
            return;
        }
        const Route& route = place_.route;
        for (int later = 1; later < route.ranks(); ++later) {
            if (is_needed(later)) {
                messages_.receive(buffers_[index(later)].all(), place_.member(block_at(later)), Tag::keys,
                                  arriving_[index(later)]);
            }
        }
        std::vector<int> seeing;
        for (int later = 1; later < route.ranks(); ++later) {
            const int to = route.rank_of(place_.rank, later);
            if (route.needs(to, place_.rank)) {
                seeing.push_back(place_.member(to));
            }
        }
        messages_.send(buffers_[0].all(), seeing, Tag::keys, leaving_);
    }

    std::byte* block(int step) override { return is_needed(step) ? buffers_[index(step)].data() : nullptr; }

    void end(int step) override
    {
        if (step + 1 < place_.route.ranks()) {
            messages_.wait(arriving_[index(step + 1)]);
        } else {
            messages_.wait(leaving_);
        }
    }
    void progress() override { messages_.progress(); }
    [[nodiscard]] std::int64_t bytes() const override
    {
        return std::accumulate(buffers_.begin(), buffers_.end(), std::int64_t{0},
                               [](std::int64_t sum, const Buffer& buffer) { return sum + buffer.bytes(); });
    }

private:
    static std::size_t index(int i) { return static_cast<std::size_t>(i); }

    std::vector<Buffer> buffers_; ///< by step
    std::vector<Pending> arriving_;
    Pending leaving_;
};

void copy_floats(const Buffer& from, const Buffer& to, std::int64_t bytes)
{
    to.site().copy(from.floats(bytes), to.floats(bytes));
}

void add_floats(const Buffer& terms, const Buffer& sums, std::int64_t bytes)
{
    sums.site().add(terms.floats(bytes), sums.floats(bytes));
}

/// Sums travel one step behind their block, each rank adds its part, and the last one sends them home.
class GradientsOfRing : public Gradients, OnRoute {
public:
    GradientsOfRing(Messages& messages, const Place& place)
        : OnRoute(messages, place), part_(messages.site(), place.most_bytes()),
          home_(messages.site(), place.bytes_of(place.rank), Stage::for_messages)
    {
        for (Buffer& buffer : sums_) {
            buffer = Buffer(messages.site(), place.most_bytes(), Stage::for_messages);
        }
    }

    void begin(int step) override
    {
        part_.clear();
        messages_.wait(leaving(step)); // of two steps ago, from the same buffer
        const Route& route = place_.route;
        if (step == 0 && route.last_step(place_.rank) > 0) {
            const int last = route.rank_of(place_.rank, route.last_step(place_.rank));
            messages_.receive(home_.all(), place_.member(last), Tag::home, coming_home_);
        }
        if (step > 0 && is_here(step)) {
            messages_.receive(sums(step).first(bytes_at(step)), behind(), Tag::gradients, arriving_);
        }
    }

    std::byte* part(int /*step*/) override { return part_.data(); }

    void end(int step) override
    {
        if (!is_here(step)) {
            return;
        }
        Buffer& all = step == 0 && !goes_on(step) ? home_ : sums(step);
        if (step == 0) {
            copy_floats(part_, all, bytes_at(step));
        } else {
            messages_.wait(arriving_);
            if (is_needed(step)) {
                add_floats(part_, all, bytes_at(step));
            }
        }
        if (goes_on(step)) {
            messages_.send(all.first(bytes_at(step)), ahead(), Tag::gradients, leaving(step));
        } else if (step > 0) {
            messages_.send(all.first(bytes_at(step)), place_.member(block_at(step)), Tag::home, leaving(step));
        }
    }

    std::byte* sums() override
    {
        messages_.wait(leaving(0));
        messages_.wait(leaving(1));
        messages_.wait(coming_home_);
        return home_.data();
    }

    [[nodiscard]] std::int64_t bytes() const override
    {
        return part_.bytes() + home_.bytes() + sums_[0].bytes() + sums_[1].bytes();
    }

private:
    [[nodiscard]] std::int64_t bytes_at(int step) const { return place_.bytes_of(block_at(step)); }
    Buffer& sums(int step) { return sums_.at(static_cast<std::size_t>(step % 2)); }
    Pending& leaving(int step) { return leaving_.at(static_cast<std::size_t>(step % 2)); }

    Buffer part_, home_;
    std::array<Buffer, 2> sums_;
    std::array<Pending, 2> leaving_;
    Pending arriving_, coming_home_;
};

/// Each part goes home by itself, in the step in which it is computed. Home adds the parts in the order of steps: the
/// same sums as the ring's.
class GradientsSentHome : public Gradients, OnRoute {
public:
    GradientsSentHome(Messages& messages, const Place& place)
        : OnRoute(messages, place), sums_(messages.site(), place.bytes_of(place.rank)),
          terms_(messages.site(), place.bytes_of(place.rank), Stage::for_messages)
    {
        for (Buffer& buffer : parts_) {
            buffer = Buffer(messages.site(), place.most_bytes(), Stage::for_messages);
        }
    }

    void begin(int step) override
    {
        messages_.wait(leaving(step));
        parts_.at(static_cast<std::size_t>(step % 2)).clear(place_.bytes_of(block_at(step)));
        if (step > 0 && place_.route.needs(giver(step), place_.rank)) {
            messages_.receive(terms_.all(), place_.member(giver(step)), Tag::home, arriving_);
        }
    }

    std::byte* part(int step) override { return parts_.at(static_cast<std::size_t>(step % 2)).data(); }

    void end(int step) override
    {
        const std::int64_t bytes = place_.bytes_of(block_at(step));
        Buffer& mine = parts_.at(static_cast<std::size_t>(step % 2));
        if (step == 0) {
            copy_floats(mine, sums_, bytes);
            return;
        }
        if (is_needed(step)) {
            messages_.send(mine.first(bytes), place_.member(block_at(step)), Tag::home, leaving(step));
        }
        if (place_.route.needs(giver(step), place_.rank)) {
            messages_.wait(arriving_);
            add_floats(terms_, sums_, sums_.bytes());
        }
    }

    std::byte* sums() override
    {
        messages_.wait(leaving(0));
        messages_.wait(leaving(1));
        return sums_.data();
    }

    [[nodiscard]] std::int64_t bytes() const override
    {
        return sums_.bytes() + terms_.bytes() + parts_[0].bytes() + parts_[1].bytes();
    }

private:
    /// The rank that computes with this rank's block in a step.
    [[nodiscard]] int giver(int step) const { return place_.route.rank_of(place_.rank, step); }
    Pending& leaving(int step) { return leaving_.at(static_cast<std::size_t>(step % 2)); }

    Buffer sums_, terms_;
    std::array<Buffer, 2> parts_;
    std::array<Pending, 2> leaving_;
    Pending arriving_;
};

} // namespace

std::unique_ptr<Keys> keys_of_ring(Messages& messages, const Place& place)
{
    return std::make_unique<KeysOfRing>(messages, place);
}

std::unique_ptr<Keys> keys_gathered(Messages& messages, const Place& place)
{
    return std::make_unique<KeysGathered>(messages, place);
}

std::unique_ptr<Gradients> gradients_of_ring(Messages& messages, const Place& place)
{
    return std::make_unique<GradientsOfRing>(messages, place);
}

std::unique_ptr<Gradients> gradients_sent_home(Messages& messages, const Place& place)
{
    return std::make_unique<GradientsSentHome>(messages, place);
}

} // namespace flashomp::mpi
