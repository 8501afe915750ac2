// What the kernels of a call say of their results (offload/algorithm/finite_check.hpp).
#pragma once

#include "workspace.hpp"

#include <optional>

namespace flashomp {

/// A word that the kernels of one call set where a result is not finite. Unless the call is asynchronous it is in host
/// memory, on a device's calls too: an answer copied from a device would take 10 µs.
class NonfiniteWord {
public:
    /// It is 0. Throws RunFailure where there is no memory for it.
    explicit NonfiniteWord(const Space& space);
    ~NonfiniteWord();
    NonfiniteWord(const NonfiniteWord&) = delete;
    NonfiniteWord& operator=(const NonfiniteWord&) = delete;

    /// For kernels. Of an asynchronous call it is on the device, and 0 for those that are queued from now on.
    [[nodiscard]] unsigned* address() const { return word_; }

    /// Once the kernels are done, of a call that is not asynchronous.
    [[nodiscard]] bool is_set() const;

private:
    unsigned own_ = 0;
    unsigned* word_ = nullptr;
    bool is_pooled_ = false;
    std::optional<Workspace> on_device_;
};

} // namespace flashomp
