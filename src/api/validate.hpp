// The only place that judges a caller's arguments. Everything below works on the Problem it returns.
#pragma once

#include "problem.hpp"

namespace flashomp {

/// The validated problem of a forward call. Throws Error naming the first argument that is not as documented in
/// attention.hpp and options.hpp, NotBuilt for options this build does not have yet. Reads cu_seqlens only.
[[nodiscard]] Problem validate_forward(const ForwardArgs& args, const Options& options);

/// The same for a backward call.
[[nodiscard]] Problem validate_backward(const BackwardArgs& args, const Options& options);

} // namespace flashomp
