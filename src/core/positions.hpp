// Positions as kernels are told of them.
#pragma once

#include "flashomp/options.hpp"

namespace flashomp {

/// Row r stands at first + r, and from row `seam` on `gap` further.
struct PlacedRows {
    std::int64_t first = 0, seam = 0, gap = 0;
};

/// Of two stretches that touch, or of which one is empty, there is no gap.
[[nodiscard]] inline PlacedRows placed_rows(const Positions& positions)
{
    const auto& [one, two] = positions.stretches;
    if (one.count == 0) {
        return {two.first, 0, 0};
    }
    return {one.first, one.count, two.count == 0 ? 0 : two.first - (one.first + one.count)};
}

} // namespace flashomp
