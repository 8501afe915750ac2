#include "heads.hpp"

#include "tensors.hpp"

#include <utility>

namespace flashomp::mpi {

HeadRange query_heads(int index, int members, std::int64_t heads_q)
{
    const std::int64_t first = index * heads_q / members;
    return {first, (index + 1) * heads_q / members - first};
}

HeadRange key_heads(const HeadRange& queries, std::int64_t heads_q, std::int64_t heads_kv)
{
    const std::int64_t group = heads_q / heads_kv;
    const std::int64_t first = queries.first / group;
    return {first, (queries.first + queries.count - 1) / group - first + 1};
}

std::vector<HeadRun> head_runs(const HeadRange& queries, std::int64_t heads_q, std::int64_t heads_kv)
{
    const std::int64_t group = heads_q / heads_kv;
    const HeadRange keys = key_heads(queries, heads_q, heads_kv);
    if (keys.count == 1 || (queries.first % group == 0 && queries.count % group == 0)) {
        return {{{0, queries.count}, {0, keys.count}}};
    }
    std::vector<HeadRun> runs;
    for (std::int64_t k = 0; k < keys.count; ++k) {
        const std::int64_t begin = std::max(queries.first, (keys.first + k) * group);
        const std::int64_t end = std::min(queries.first + queries.count, (keys.first + k + 1) * group);
        runs.push_back({{begin - queries.first, end - begin}, {k, 1}});
    }
    return runs;
}

Group::Group(Layout layout, const std::vector<std::int64_t>& rows, int first, int members)
    : first_(first), stretches_(rows_of_ranks(layout, rows, first, members))
{
    for (int member = 0; member < members; ++member) {
        std::vector<Rows> of_member;
        std::int64_t own = 0;
        for (const auto& [position, count] : rows_of_ranks(layout, rows, first + member, 1)) {
            of_member.push_back({own, place_of(position, stretches_), count});
            own += count;
        }
        members_.push_back(of_member);
    }
}

/// The messages of one exchange. Tensors on the host leave and arrive as they are.
class Wire {
public:
    Wire(Messages& messages, Exchange& exchange) : messages_(messages), exchange_(exchange) {}

    void send(const ConstTensorView& view, int to)
    {
        if (view.memory == Memory::host) {
            messages_.send(view, to, Tag::heads, leaving_);
        } else if (view.elements() > 0) {
            const BufferPart part = next(exchange_.out, view, sent_);
            messages_.site().copy(view, packed(part, view));
            messages_.send(part, to, Tag::heads, leaving_);
        }
    }

    void receive(const TensorView& view, int from)
    {
        if (view.memory == Memory::host) {
            messages_.receive(view, from, Tag::heads, arriving_);
        } else if (view.elements() > 0) {
            const BufferPart part = next(exchange_.in, view, received_);
            messages_.receive(part, from, Tag::heads, arriving_);
            views_.emplace_back(view, part);
        }
    }

    /// Until what was received is in its tensors.
    void wait_for_received()
    {
        messages_.wait(arriving_);
        for (const auto& [view, part] : views_) {
            messages_.site().copy(packed(part, view), view);
        }
        views_.clear();
        received_ = 0;
    }
    void wait_for_sent() { messages_.wait(leaving_); }

private:
    static BufferPart next(Buffer& buffer, const ConstTensorView& view, std::int64_t& end)
    {
        const BufferPart part{&buffer, end, view.elements() * size_of(view.dtype)};
        end += part.bytes;
        return part;
    }
    static TensorView packed(const BufferPart& part, const ConstTensorView& view)
    {
        TensorView packed = part.buffer->like(view, view.dtype);
        packed.data = part.buffer->data() + part.first;
        return packed;
    }

    Messages& messages_;
    Exchange& exchange_;
    Pending leaving_, arriving_;
    std::int64_t sent_ = 0, received_ = 0; ///< bytes of the exchange's buffers
    std::vector<std::pair<TensorView, BufferPart>> views_;
};

void Group::share_out(Messages& messages, const ConstTensorView& own, const std::vector<HeadRange>& ranges,
                      const TensorView& shared, Exchange& exchange) const
{
    Wire wire(messages, exchange);
    for (std::size_t member = 0; member < members_.size(); ++member) {
        for (const Rows& rows : members_[member]) {
            wire.receive(part_of(shared, 1, rows.shared, rows.count), first_ + static_cast<int>(member));
        }
    }
    for (std::size_t member = 0; member < members_.size(); ++member) {
        const ConstTensorView heads = part_of(own, 2, ranges[member].first, ranges[member].count);
        for (const Rows& rows : members_[static_cast<std::size_t>(me(messages))]) {
            wire.send(part_of(heads, 1, rows.own, rows.count), first_ + static_cast<int>(member));
        }
    }
    wire.wait_for_received();
    wire.wait_for_sent();
}

void Group::send_home(Wire& wire, const ConstTensorView& shared) const
{
    for (std::size_t member = 0; member < members_.size(); ++member) {
        for (const Rows& rows : members_[member]) {
            wire.send(part_of(shared, 1, rows.shared, rows.count), first_ + static_cast<int>(member));
        }
    }
}

void Group::bring_home(Messages& messages, const ConstTensorView& shared, const std::vector<HeadRange>& ranges,
                       const TensorView& own, Exchange& exchange) const
{
    Wire wire(messages, exchange);
    for (std::size_t member = 0; member < members_.size(); ++member) {
        const TensorView heads = part_of(own, 2, ranges[member].first, ranges[member].count);
        for (const Rows& rows : members_[static_cast<std::size_t>(me(messages))]) {
            wire.receive(part_of(heads, 1, rows.own, rows.count), first_ + static_cast<int>(member));
        }
    }
    send_home(wire, shared);
    wire.wait_for_received();
    wire.wait_for_sent();
}

void Group::add_home(Messages& messages, const ConstTensorView& shared, const std::vector<HeadRange>& ranges,
                     const TensorView& own, Buffer& scratch, Exchange& exchange) const
{
    Wire wire(messages, exchange);
    send_home(wire, shared);
    for (std::size_t member = 0; member < members_.size(); ++member) {
        const TensorView terms =
            scratch.view(own.dtype, {own.shape[0], own.shape[1], ranges[member].count, own.shape[3]});
        for (const Rows& rows : members_[static_cast<std::size_t>(me(messages))]) {
            wire.receive(part_of(terms, 1, rows.own, rows.count), first_ + static_cast<int>(member));
        }
        wire.wait_for_received();
        messages.site().add(terms, part_of(own, 2, ranges[member].first, ranges[member].count));
    }
    wire.wait_for_sent();
}

} // namespace flashomp::mpi
