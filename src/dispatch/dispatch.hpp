#pragma once

#include "append_problem.hpp"
#include "problem.hpp"

namespace flashomp {

/// Runs a validated problem on the backend and device it asks for. Throws Error when a device that was named is not
/// there.
Report run(const Problem& problem);

/// Runs a validated merge (attention.hpp).
Report run_merge(const Partial& a, const Partial& b, const TensorView& o, const TensorView& lse,
                 const Options& options);

/// Runs a validated append (flashomp/cache.hpp).
Report run_append(const AppendProblem& append);

} // namespace flashomp
