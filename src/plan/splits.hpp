// How the work of a pass is cut into blocks, and into parts where blocks are few.
#pragma once

#include "plan.hpp"

namespace flashomp {

/// Rows that lse has in all: one statistic each.
[[nodiscard]] std::int64_t statistic_rows(const Problem& problem);

/// Rows of k, and of v, in all heads.
[[nodiscard]] std::int64_t key_rows(const Problem& problem);

/// The blocks of packed sequences that exist, costliest first, so that sequences whose lengths differ by orders of
/// magnitude still end together.
[[nodiscard]] std::vector<offload::Unit> packed_units(const Problem& problem, const offload::Launch& launch);

/// Whether the last crew of a block merges what the parts of its keys give (nvidia/merge_splits.hpp,
/// few_queries_forward.hpp).
[[nodiscard]] bool merges_in_pass(const Problem& problem, const PassPlan& pass, const Hardware& hardware);

/// More would make the partial results more than a few rows of memory. Models with heads beyond 256 have up to 128 of
/// them on one key head, whose single queries are the rows of one block (groups.hpp).
[[nodiscard]] std::int64_t most_queries_of_parts(const Problem& problem);

/// Parts to cut the keys into when there are fewer units of work than crews: few queries against long keys. A function
/// of the problem and the kind of hardware, a GPU's teams among it, so that the number of host threads does not change
/// the bits.
[[nodiscard]] int split_count(const Problem& problem, const PassPlan& pass, const Hardware& hardware);

/// Parts to share a group's query heads out in where the dK/dV pass has fewer key blocks than crews, or under a causal
/// mask, whose blocks differ, than end together: a divisor of the group. Their sums are no more memory than a float32
/// copy of dQ would be.
[[nodiscard]] int head_split_count(const Problem& problem, const PassPlan& pass);

} // namespace flashomp
