// What a flashomp_block_mask is.
#pragma once

#include "flashomp/block_mask.hpp"
#include "flashomp/flashomp.h"

struct flashomp_block_mask {
    flashomp::BlockMask mask;
};

namespace flashomp::capi {

/// None for a null pointer.
[[nodiscard]] BlockMask block_mask_of(const flashomp_block_mask* given);

} // namespace flashomp::capi
