// Parts that the keys of few queries are cut into.
#pragma once

namespace flashomp::offload {

/// Parts of a block's keys that its last crew merges (merge_splits.hpp, few_queries_forward.hpp): a lane weighs two.
inline constexpr int most_merged_parts = 64;

} // namespace flashomp::offload
