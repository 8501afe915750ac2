// Options of the C interface, and the workspace of a caller's allocator.
#pragma once

#include "tensors.hpp"

#include "flashomp/flashomp.h"
#include "flashomp/options.hpp"

#include <cstdint>
#include <optional>

namespace flashomp::capi {

[[nodiscard]] flashomp_options default_options();

/// The options as this library knows them; null stands for the defaults. Throws Error where their size is none.
[[nodiscard]] flashomp_options read_options(const flashomp_options* given);

/// Throws Error where the number is neither 0 nor 1.
[[nodiscard]] bool boolean(const char* name, int value);

/// Throws Error where the number is none of a backend.
[[nodiscard]] Backend backend_of(std::int32_t given);

/// Whether the call uses managed memory as a GPU's.
[[nodiscard]] bool managed_is_gpus(const flashomp_options& given);

/// Views of the options' tensors included; all other tensors of the call have gone through `views` before, so that the
/// device is chosen with them. Throws Error where a member is not as documented.
[[nodiscard]] Options options_of(const flashomp_options& given, Views& views);

/// The allocator of a call that takes one, flashomp_forward() or flashomp_backward(). Throws Error where it cannot
/// allocate, or the options' size is none.
[[nodiscard]] std::optional<flashomp_allocator> allocator_of(const flashomp_options* options);

} // namespace flashomp::capi
