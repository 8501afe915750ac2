// The only place that judges a caller's arguments. Everything below works on the Problem it returns.
#pragma once

#include "problem.hpp"

namespace flashomp {

/// The validated problem of a forward call. Throws Error naming the first argument that is not as documented in
/// attention.hpp and options.hpp, NotBuilt for options this build does not have yet. Reads cu_seqlens and the tables of
/// a cache only.
[[nodiscard]] Problem validate_forward(const ForwardArgs& args, const Options& options);

/// The same for a backward call.
[[nodiscard]] Problem validate_backward(const BackwardArgs& args, const Options& options);

/// The same in two steps: the problem with its tensors and options, of which nothing is known, and its validation,
/// which sets the shape and does not look at the tables of a cache (check_cache_values()).
[[nodiscard]] Problem problem_of(const ForwardArgs& args, const Options& options);
[[nodiscard]] Problem problem_of(const BackwardArgs& args, const Options& options);
void validate(Problem& problem);

/// The part of it that depends on addresses: outputs share no memory with another tensor.
void check_outputs(const Problem& problem);

} // namespace flashomp
