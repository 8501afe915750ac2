// A sequence cut into parts that are as even as they can be: what flashomp::mpi and `flashomp plan --ranks` shard by.
#pragma once

#include "flashomp/options.hpp"

namespace flashomp {

/// Part `index` of so many, [index·length/parts, (index+1)·length/parts). The product fits, as sequences have at most
/// 2^30 rows.
[[nodiscard]] inline Stretch even_part(std::int64_t index, std::int64_t parts, std::int64_t length)
{
    const std::int64_t first = index * length / parts;
    return {first, (index + 1) * length / parts - first};
}

} // namespace flashomp
