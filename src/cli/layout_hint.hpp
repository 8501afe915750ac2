// A runner's calls, with a hint where tensors seem to be in the other order of axes than --layout says.
#pragma once

#include "attention_options.hpp"
#include "runner.hpp"

#include "flashomp/attention.hpp"

namespace flashomp::cli {

/// Runner::forward(). Where it refuses tensors that it would take with sequence and heads exchanged, the sentence
/// also names the --layout that does that. `layout` is the one that was given.
[[nodiscard]] CallReport forward_in(const Runner& runner, Layout layout, const ForwardArgs& args,
                                    const Options& options);

/// The same for Runner::backward().
[[nodiscard]] CallReport backward_in(const Runner& runner, Layout layout, const BackwardArgs& args,
                                     const Options& options);

} // namespace flashomp::cli
