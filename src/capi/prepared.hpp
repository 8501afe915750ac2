// What a prepared call of the C interface holds.
#pragma once

#include "flashomp/flashomp.h"
#include "flashomp/prepared.hpp"

#include <variant>

struct flashomp_prepared {
    std::variant<flashomp::PreparedForward, flashomp::PreparedBackward> call;
    bool managed_is_gpus; ///< in the options that prepare got
};
