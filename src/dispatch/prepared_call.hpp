// A validated problem with everything decided: where it runs, its plan, and how its workspace is laid out.
#pragma once

#include "cache_lengths.hpp"
#include "calls.hpp"
#include "constants.hpp"
#include "nonfinite_word.hpp"
#include "place.hpp"
#include "plan.hpp"
#include "problem.hpp"
#include "second_computation.hpp"
#include "staging.hpp"
#include "workspace.hpp"

#include "flashomp/prepared.hpp"

#include <memory>

namespace flashomp {

/// One call of the openmp or cuda backend. Runs do not plan, and get no memory, but where a result is not finite
/// (second_computation.hpp).
class PreparedCall {
public:
    /// `keeps_addresses`: the call is run once, with the tensors that the problem has; else any run may have others.
    /// Throws Error when a device that was named is not there, or a tensor is in a memory that the call cannot read.
    PreparedCall(const Problem& problem, bool keeps_addresses);
    PreparedCall(const PreparedCall&) = delete;
    PreparedCall& operator=(const PreparedCall&) = delete;

    /// What a run needs, in the memory of the space.
    [[nodiscard]] std::int64_t workspace_bytes() const;
    [[nodiscard]] const Space& space() const { return space_; }

    /// Runs the call on tensors at other addresses. `workspace` is aligned to workspace_alignment; `stream` counts
    /// where the call was prepared with one.
    RunReport run(const Problem& addresses, void* workspace, void* stream);

    /// What the run did, in words.
    [[nodiscard]] Report report(const RunReport& run) const;

private:
    /// A plan and what goes with it. Backward in float32 on the host has another one for a large LSE.
    struct Way {
        Plan plan;
        Calls calls;

        Way(const Problem& problem, const Place& place, const Space& space)
            : plan(flashomp::plan(problem, place.hardware)), calls(plan, problem, space)
        {
        }
    };

    /// Parts of a workspace, in bytes from its start.
    struct Layout {
        std::int64_t rows = 0, partial = 0, crews = 0, tiles = 0, calls = 0, zeros = 0, copies = 0, bytes = 0;
    };
    [[nodiscard]] Layout layout_of(const Way& way) const;
    [[nodiscard]] std::unique_ptr<Way> way_of_large_lse() const;

    Place place_;
    Space space_;
    Problem problem_;
    Way way_;
    std::unique_ptr<Way> way_of_large_lse_; ///< null: the plan does not depend on LSE
    SecondComputation second_;
    Constants constants_;
    NonfiniteWord word_;
    CacheLengths lengths_;
    StagingBytes staging_;
    Workspace gathered_; ///< on the host
};

} // namespace flashomp
