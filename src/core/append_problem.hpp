// A validated append(): what the layers below the checks work on.
#pragma once

#include "flashomp/cache.hpp"
#include "problem.hpp"

#include <cstdint>
#include <vector>

namespace flashomp {

struct AppendProblem {
    /// The cache as forward() sees it: k and v are the cache, the options have its tables, and no cu_seqlens.
    Problem cache;
    AppendArgs args;
    std::int64_t rows = 0, rows_q = 0;            ///< new ones of a sequence, and of q; when packed, of the longest
    std::vector<std::int32_t> starts_k, starts_q; ///< cu_seqlens of what is packed
    std::vector<std::int32_t> places;             ///< of each sequence's first new row
};

} // namespace flashomp
