// What the kernels of a call read that is the same in all its runs.
#pragma once

#include "plan.hpp"
#include "problem.hpp"
#include "workspace.hpp"

#include <optional>

namespace flashomp {

/// The blocks of packed sequences and the boundaries between sequences, where kernels can read them: on a device in
/// memory of its own, by one copy. Each copy in front of a launch takes microseconds.
class Constants {
public:
    /// Gives the passes of the plans (null: no such plan) their units, and the problem the addresses of its boundaries.
    /// All have to outlive this. Throws RunFailure where the space has no memory left.
    Constants(const Space& space, Problem& problem, std::initializer_list<Plan*> plans);

private:
    std::optional<Workspace> memory_;
};

} // namespace flashomp
