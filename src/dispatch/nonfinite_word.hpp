// What the kernels of a call say of their results (offload/algorithm/finite_check.hpp).
#pragma once

#include "space.hpp"

#include <cstdint>

namespace flashomp {

/// A word that the kernels of one call set where a result is not finite. Unless the call is asynchronous it is in host
/// memory, on a device's calls too: an answer copied from a device would take 10 µs.
class NonfiniteWord {
public:
    /// Throws RunFailure where there is no memory for it.
    explicit NonfiniteWord(const Space& space);
    ~NonfiniteWord();
    NonfiniteWord(const NonfiniteWord&) = delete;
    NonfiniteWord& operator=(const NonfiniteWord&) = delete;

    /// Bytes of a run's workspace that it takes: those of an asynchronous call.
    static constexpr std::int64_t workspace_bytes(const Space& space)
    {
        return space.is_asynchronous ? sizeof(unsigned) : 0;
    }

    /// 0, for the kernels of the next run: at `in_workspace`, where it takes memory there, which the caller has cleared
    /// for those that are queued from now on.
    unsigned* start(void* in_workspace, const Space& space);

    /// Once the kernels are done, of a call that is not asynchronous.
    [[nodiscard]] bool is_set() const;

private:
    unsigned own_ = 0;
    unsigned* word_ = nullptr;
    int process_ = 0; ///< that has it from the pool; 0: it is not from there
};

} // namespace flashomp
