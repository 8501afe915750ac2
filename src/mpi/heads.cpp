#include "heads.hpp"

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

void Group::share_out(Messages& messages, const ConstTensorView& own, const std::vector<HeadRange>& ranges,
                      const TensorView& shared) const
{
    Pending pending;
    for (std::size_t member = 0; member < members_.size(); ++member) {
        for (const Rows& rows : members_[member]) {
            messages.receive(part_of(shared, 1, rows.shared, rows.count), first_ + static_cast<int>(member), Tag::heads,
                             pending);
        }
    }
    for (std::size_t member = 0; member < members_.size(); ++member) {
        const ConstTensorView heads = part_of(own, 2, ranges[member].first, ranges[member].count);
        for (const Rows& rows : members_[static_cast<std::size_t>(me(messages))]) {
            messages.send(part_of(heads, 1, rows.own, rows.count), first_ + static_cast<int>(member), Tag::heads,
                          pending);
        }
    }
    messages.wait(pending);
}

void Group::send_home(Messages& messages, const ConstTensorView& shared, Pending& pending) const
{
    for (std::size_t member = 0; member < members_.size(); ++member) {
        for (const Rows& rows : members_[member]) {
            messages.send(part_of(shared, 1, rows.shared, rows.count), first_ + static_cast<int>(member), Tag::heads,
                          pending);
        }
    }
}

void Group::bring_home(Messages& messages, const ConstTensorView& shared, const std::vector<HeadRange>& ranges,
                       const TensorView& own) const
{
    Pending pending;
    for (std::size_t member = 0; member < members_.size(); ++member) {
        const TensorView heads = part_of(own, 2, ranges[member].first, ranges[member].count);
        for (const Rows& rows : members_[static_cast<std::size_t>(me(messages))]) {
            messages.receive(part_of(heads, 1, rows.own, rows.count), first_ + static_cast<int>(member), Tag::heads,
                             pending);
        }
    }
    send_home(messages, shared, pending);
    messages.wait(pending);
}

void Group::add_home(Messages& messages, const ConstTensorView& shared, const std::vector<HeadRange>& ranges,
                     const TensorView& own, Buffer& scratch) const
{
    Pending sent, received;
    send_home(messages, shared, sent);
    for (std::size_t member = 0; member < members_.size(); ++member) {
        const TensorView terms =
            scratch.view(own.dtype, {own.shape[0], own.shape[1], ranges[member].count, own.shape[3]});
        for (const Rows& rows : members_[static_cast<std::size_t>(me(messages))]) {
            messages.receive(part_of(terms, 1, rows.own, rows.count), first_ + static_cast<int>(member), Tag::heads,
                             received);
        }
        messages.wait(received);
        add(terms, part_of(own, 2, ranges[member].first, ranges[member].count));
    }
    messages.wait(sent);
}

} // namespace flashomp::mpi
