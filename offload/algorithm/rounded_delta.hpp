// Whether D from an O that was rounded will do: kernels that repair D (row_repair.hpp) take longer.
#pragma once

#include "algorithm/mask.hpp"

#include <cstdint>

namespace flashomp::offload {

/// Where rows see few keys, what rounding took from O is more than all other errors of dS, and a sink's gradient is a
/// sum of D.
inline bool may_keep_delta(const Band& band, bool has_sink_gradient)
{
    constexpr std::int64_t few_keys = 256;
    return band.most_keys() >= few_keys && !has_sink_gradient;
}

} // namespace flashomp::offload
