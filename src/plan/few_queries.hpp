// Few queries on the host, as in decoding (offload/host/few_queries.hpp): how many key heads a crew goes along
// together.
//
// Tokens of a cache have their heads beside each other. A crew that reads one head of 256 bytes and leaves out the next
// seven gets half of the memory's bandwidth; one that reads whole tokens gets all of it.
#pragma once

#include "plan.hpp"

namespace flashomp {

/// The most key heads whose queries may be one block of rows: a divisor of heads_kv, and 1 where the heads have
/// something of their own, some query does not see all keys, or the rows of q, o or lse do not lie at one stride. The
/// number of threads has no part in it, so that what follows from it, the length of key blocks and of parts, may change
/// the bits.
[[nodiscard]] int most_heads_in_block(const Problem& problem, const Hardware& hardware);

/// Keys of a block: as many as leave room in a core's own cache for the next one.
[[nodiscard]] int keys_in_block(const Problem& problem, const Hardware& hardware);

/// As many of them as leave two items of work to each thread, of `items` with one head each. Changes no bit.
[[nodiscard]] int heads_in_block(const Problem& problem, const Hardware& hardware, std::int64_t items);

} // namespace flashomp
