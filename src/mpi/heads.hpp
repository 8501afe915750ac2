// Heads shared out among neighbouring ranks: each gives rows of all heads and gets all their rows of some heads
// (Jacobs et al. 2023, "DeepSpeed Ulysses"), and back.
#pragma once

#include "buffer.hpp"
#include "layout.hpp"
#include "messages.hpp"

#include <cstdint>
#include <vector>

namespace flashomp::mpi {

struct HeadRange {
    std::int64_t first = 0, count = 0;
};

/// Query heads of member `index` of so many.
[[nodiscard]] HeadRange query_heads(int index, int members, std::int64_t heads_q);
/// The key heads that these query heads use: members share some where there are fewer key heads than members.
[[nodiscard]] HeadRange key_heads(const HeadRange& queries, std::int64_t heads_q, std::int64_t heads_kv);

/// Heads of one call: equally many query heads for each key head. Counted from the first ones of the rank.
struct HeadRun {
    HeadRange q, k;
};

/// The calls that a range of query heads takes: one where it has whole groups, or a part of one; else one a key head.
[[nodiscard]] std::vector<HeadRun> head_runs(const HeadRange& queries, std::int64_t heads_q, std::int64_t heads_kv);

/// What a device's tensors are packed into, to leave and after they have arrived: MPI copies strided tensors of the
/// host alone. As large as the most that one exchange sends and receives; empty on the host.
struct Exchange {
    Buffer out, in;
};

class Wire;

/// The ranks that share out heads, of one side: of queries or of keys.
class Group {
public:
    /// Rows that follow one another both in a member's tensor and in the group's.
    struct Rows {
        std::int64_t own, shared, count;
    };

    /// Ranks [first, first + members). `rows` has the rows of each rank of the communicator.
    Group(Layout layout, const std::vector<std::int64_t>& rows, int first, int members);

    [[nodiscard]] const Stretches& stretches() const { return stretches_; } ///< of all members together
    [[nodiscard]] std::int64_t rows() const { return rows_of(stretches_); }
    [[nodiscard]] int members() const { return static_cast<int>(members_.size()); }
    [[nodiscard]] const std::vector<Rows>& rows_of_member(int member) const
    {
        return members_[static_cast<std::size_t>(member)];
    }

    /// From own rows [A, own rows, heads, C] to the group's rows [A, group's rows, own heads, C]. `ranges` has each
    /// member's heads.
    void share_out(Messages& messages, const ConstTensorView& own, const std::vector<HeadRange>& ranges,
                   const TensorView& shared, Exchange& exchange) const;
    /// Back again. No two members have one head.
    void bring_home(Messages& messages, const ConstTensorView& shared, const std::vector<HeadRange>& ranges,
                    const TensorView& own, Exchange& exchange) const;
    /// Back again, float32, where members may have the same heads: sums over members, in their order. `scratch` has the
    /// size of the own rows of the longest range.
    void add_home(Messages& messages, const ConstTensorView& shared, const std::vector<HeadRange>& ranges,
                  const TensorView& own, Buffer& scratch, Exchange& exchange) const;

private:
    [[nodiscard]] int me(const Messages& messages) const { return messages.rank() - first_; }
    void send_home(Wire& wire, const ConstTensorView& shared) const;

    int first_;
    Stretches stretches_;
    std::vector<std::vector<Rows>> members_;
};

} // namespace flashomp::mpi
