// The passes of a call as their kernels are given them, on the OpenMP backend.
#pragma once

#include "algorithm/merge.hpp"
#include "launch/launch.hpp"
#include "plan.hpp"
#include "problem.hpp"
#include "space.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace flashomp {

/// The passes of a call and, where the plan has one, the merge after them. On a device they go to its memory by one
/// copy a run, together with what they point to: counters of crews that share blocks, all 0, and the tensors' maps
/// (tensor_maps.hpp).
class Calls {
public:
    /// For a plan that outlives this.
    Calls(const Plan& plan, const Problem& problem, const Space& space);

    /// Bytes of a run's workspace that they take.
    [[nodiscard]] std::int64_t workspace_bytes() const { return bytes_; }

    /// Makes them those of one run, in such memory of its workspace; `most_threads`: of a host pass, which may be fewer
    /// than were planned.
    void set(const Problem& problem, const offload::Params& params, float* crew_memory, void* memory,
             const Space& space, int most_threads);

    /// One of the plan's passes, to read on the host.
    [[nodiscard]] const offload::Call& here(std::size_t pass) const { return passes_[pass].call; }

    /// The same in the memory of the space.
    [[nodiscard]] offload::Call* there(std::size_t pass) { return there(passes_[pass].call, passes_[pass].at); }

    /// The merge, where the plan has one.
    [[nodiscard]] const offload::MergeParams& merge_here() const { return merge_; }

    /// The same in the memory of the space.
    [[nodiscard]] const offload::MergeParams* merge_there() { return there(merge_, merge_at_); }

private:
    struct Placed {
        offload::Call call;
        std::int64_t arrivals_at = 0, arrivals = 0; ///< in the memory of the space, as the others
        std::int64_t at = 0, maps_at = 0;           ///< on a device only
    };

    std::int64_t reserve(std::int64_t bytes);
    template <class T>
    T* there(T& here, std::int64_t at)
    {
        return memory_ == nullptr ? &here : reinterpret_cast<T*>(memory_ + at);
    }
    void send(const Problem& problem, const Space& space);

    const Plan& plan_;
    std::vector<Placed> passes_;
    offload::MergeParams merge_;
    std::int64_t merge_at_ = 0;
    std::int64_t bytes_ = 0;
    std::byte* memory_ = nullptr;  ///< of this run, on a device
    std::vector<std::byte> image_; ///< what is copied there
};

} // namespace flashomp
