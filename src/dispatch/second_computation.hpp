// Results that are not finite are computed a second time, from visible pairs alone: offload/host/nonfinite.hpp says
// why.
#pragma once

#include "nonfinite_word.hpp"
#include "place.hpp"
#include "plan.hpp"
#include "problem.hpp"
#include "staging.hpp"

#include <optional>

namespace flashomp {

/// The second computation of one call, which follows the first.
class SecondComputation {
public:
    /// On a stream the passes are planned and what they need is copied now: a copy to a device waits for what is queued
    /// before. `params` are those of the first computation, and are given the word that its kernels set.
    SecondComputation(const Problem& problem, offload::Params& params, const Place& place, Staging& staging);

    /// Waits for the first computation of the plan `first`, and where a result of it is not finite computes the call
    /// again. On a stream nobody waits: kernels are queued that look for themselves. `all_is_finite` is what the host's
    /// passes have found. Returns whether the call was computed a second time; false where only the kernels know.
    bool run(const Plan& first, bool all_is_finite);

private:
    void prepare();
    void run_prepared(const unsigned* only_if);

    Problem problem_;
    offload::Params params_;
    const Place& place_;
    Staging& staging_;
    Space space_;
    NonfiniteWord word_;
    std::optional<Plan> plan_; ///< once prepare() was called
};

} // namespace flashomp
