// What the kernels of a call read that is the same in all its runs.
#pragma once

#include "kernel_params.hpp"
#include "plan.hpp"
#include "problem.hpp"
#include "workspace.hpp"

#include <initializer_list>
#include <optional>

namespace flashomp {

/// The blocks of packed sequences and the boundaries between sequences, where kernels can read them: on a device in
/// memory of its own, by one copy. Each copy in front of a launch takes microseconds.
class Constants {
public:
    /// Gives the passes of the plans (null: no such plan) their units. Problem and plans have to outlive this. In an
    /// asynchronous space the constants are for what is queued on its stream from now on, else for anything. Throws
    /// RunFailure where the space has no memory left.
    Constants(const Space& space, const Problem& problem, std::initializer_list<Plan*> plans);

    [[nodiscard]] const Boundaries& boundaries() const { return boundaries_; }

private:
    std::optional<Workspace> memory_;
    Boundaries boundaries_;
};

} // namespace flashomp
