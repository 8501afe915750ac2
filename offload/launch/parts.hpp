// Parts that the keys of few queries are cut into.
#pragma once

namespace flashomp::offload {

/// Parts of a block's keys that its last crew merges (nvidia/merge_splits.hpp): a lane weighs two of a row.
inline constexpr int most_merged_parts = 64;

} // namespace flashomp::offload
