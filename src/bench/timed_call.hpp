// One direction of a case, called as a program would.
#pragma once

#include "bench_case.hpp"
#include "workspace.hpp"

#include "flashomp/prepared.hpp"

#include <memory>
#include <optional>

namespace flashomp::bench {

/// Calls forward() or backward(), or prepares the call the first time and runs what was prepared.
class TimedCall {
public:
    /// For a case that outlives this, and whose machine and tiling stay. Whoever queues calls on a stream waits for it
    /// before this ends, or before it is called without the stream.
    TimedCall(BenchCase& bench, bool backward, bool is_prepared, const Space& space);
    ~TimedCall();
    TimedCall(const TimedCall&) = delete;
    TimedCall& operator=(const TimedCall&) = delete;

    void operator()();

    /// Of the last call.
    [[nodiscard]] Report report() const;

private:
    class Run;
    void call_prepared();

    BenchCase& bench_;
    bool backward_, is_prepared_;
    Space space_;
    Report report_;
    std::unique_ptr<Run> run_;
};

} // namespace flashomp::bench
