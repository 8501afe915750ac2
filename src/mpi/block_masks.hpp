// Block masks of the ranks that share out heads. Each rank has that of its own rows; with heads shared out it computes
// all rows of the group, and needs those of all members.
#pragma once

#include "buffer.hpp"
#include "call.hpp"
#include "heads.hpp"
#include "layout.hpp"
#include "messages.hpp"

#include <cstdint>
#include <vector>

namespace flashomp::mpi {

/// What ranks must know of each other's block masks before they take memory for them. Collective.
[[nodiscard]] std::vector<std::int64_t> facts_of_block_masks(const Messages& messages, const BlockMask& own);

class BlockMasks {
public:
    /// Of the members of the group, ranks [first, ...) of the communicator, of which this is `rank`. Takes memory for
    /// what is to be received.
    BlockMasks(const Call& call, const Whole& whole, const Group& group, int first, int rank);

    /// Sends the rank's own to the other members, and receives theirs. Collective among them.
    void exchange(Messages& messages);
    /// Makes masks of what was received. May throw.
    void assemble();

    /// What they say of a piece's queries and keys. `heads`: query heads of the whole.
    [[nodiscard]] BlockMask part(const Piece& piece, const HeadRange& heads) const;

    [[nodiscard]] std::int64_t bytes() const { return bytes_; } ///< of what is received

private:
    struct Part;

    /// A mask on its way, on the host: BlockRows of blocks of queries, and bits.
    struct Arrays {
        Buffer starts, blocks, numbers, bits;
    };
    struct Member {
        BlockMaskShape shape;
        Arrays arriving;
        BlockMask mask;
    };
    /// Rows of the group that follow one another in a member's mask.
    struct Segment {
        Stretch at;           ///< in the group
        std::int64_t own = 0; ///< the first one in the mask
        std::size_t member = 0;
    };

    [[nodiscard]] const Segment& segment_of(std::int64_t row) const;

    bool is_packed_;
    int first_;
    std::size_t me_;
    std::vector<Member> members_;
    std::vector<Segment> segments_; ///< ascending
    std::int64_t bytes_ = 0;
};

} // namespace flashomp::mpi
