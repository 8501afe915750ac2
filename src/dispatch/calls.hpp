// The passes of a call as their kernels are given them, on the OpenMP backend.
#pragma once

#include "algorithm/merge.hpp"
#include "image.hpp"
#include "launch/launch.hpp"
#include "plan.hpp"
#include "problem.hpp"

#include <cstddef>
#include <vector>

namespace flashomp {

/// The passes of a call and, where the plan has one, the merge after them: in the memory of the space that they run
/// in, together with what they point to, the blocks of packed sequences and the tensors' maps (tensor_maps.hpp).
class Calls {
public:
    Calls(const Plan& plan, const Problem& problem, const offload::Params& params, float* crew_memory,
          const Space& space);

    /// One of the plan's passes, to read on the host.
    [[nodiscard]] const offload::Call& here(std::size_t pass) const { return passes_[pass].call; }

    /// The same in the memory of the space.
    [[nodiscard]] offload::Call* there(std::size_t pass) const
    {
        return image_.address<offload::Call>(passes_[pass].at);
    }

    /// The merge, where the plan has one.
    [[nodiscard]] const offload::MergeParams& merge_here() const { return merge_; }

    /// The same in the memory of the space.
    [[nodiscard]] const offload::MergeParams* merge_there() const
    {
        return image_.address<offload::MergeParams>(merge_at_);
    }

private:
    struct Placed {
        offload::Call call;
        std::int64_t at = 0; ///< in image_
    };

    Image image_;
    std::vector<Placed> passes_;
    offload::MergeParams merge_;
    std::int64_t merge_at_ = 0;
};

} // namespace flashomp
