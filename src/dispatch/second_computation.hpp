// Results that are not finite are computed a second time, from visible pairs alone: offload/host/nonfinite.hpp says
// why.
#pragma once

#include "place.hpp"
#include "plan.hpp"
#include "problem.hpp"

#include "algorithm/params.hpp"

#include <optional>

namespace flashomp {

/// The second computation of a call, which follows the first. It is rare: only a call on a stream plans it beforehand,
/// since nobody waits there to see whether it is needed.
class SecondComputation {
public:
    /// For a problem and a place that outlive this.
    SecondComputation(const Problem& problem, const Place& place, const Space& space);

    /// The plan that kernels which are queued on a stream follow; null where there is none.
    [[nodiscard]] Plan* plan_of_stream() { return plan_of_stream_ ? &*plan_of_stream_ : nullptr; }

    /// Queues kernels behind the first computation on the stream, which look at its word for themselves.
    void queue(const offload::Params& params, const Space& space) const;

    /// Computes the call again, whose first computation was that of the plan `first` and is over. Plans and takes
    /// memory where it needs some; on the host it has at most so many threads. Returns false where the call has no
    /// second computation.
    bool run(const Plan& first, const offload::Params& params, int most_threads) const;

private:
    [[nodiscard]] Plan planned() const;
    void run_on_visible(const offload::Params& params, int most_threads) const;

    const Problem& problem_;
    const Place& place_;
    Space space_;
    std::optional<Plan> plan_of_stream_;
};

} // namespace flashomp
