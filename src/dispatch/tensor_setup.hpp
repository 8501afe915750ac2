// What the tensor-core machines need in device memory: the counters from which crews draw their work and, on Hopper,
// the maps by which the copy engine knows the tensors that a pass streams (CUDA driver API, cuTensorMapEncodeTiled).
#pragma once

#include "params.hpp"
#include "plan.hpp"
#include "problem.hpp"
#include "workspace.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace flashomp {

/// The maps and counters of one call, in device memory for as long as it lives. Where there is no map, for want of the
/// driver's function or because a tensor's strides are not whole 16 bytes, kernels copy by themselves.
class TensorSetup {
public:
    /// For the passes of the plan that the tensor and Hopper machines run.
    TensorSetup(const Plan& plan, const Problem& problem, const offload::Params& params, const Space& space);

    /// The parameters of one of the plan's passes: the call's, with this pass's maps.
    [[nodiscard]] offload::Params with_maps(offload::Params params, std::size_t pass) const;

    /// Zero, for one of the plan's passes; null where neither machine runs it.
    [[nodiscard]] unsigned* counter(std::size_t pass) const;

private:
    struct Entry {
        std::size_t pass;
        offload::Tensor offload::Params::*tensor;
        std::int64_t offset; ///< of the map in memory_
    };

    std::vector<Entry> entries_;
    std::vector<std::int64_t> counters_; ///< offset of each pass's in memory_, -1: none
    std::optional<Workspace> memory_;
};

} // namespace flashomp
