// How the commands call attention: by single calls, unless a program has another way.
#pragma once

#include "flashomp/attention.hpp"

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace flashomp::cli {

/// What ranks that shared a call did.
struct RanksReport {
    int ranks = 1, heads_ranks = 1;
    std::string layout, scheme, why;
    std::int64_t bytes_sent = 0;    ///< by all
    double seconds_computing = 0.0; ///< of the rank with the most, as the next
    double seconds_waiting = 0.0;
};

struct CallReport {
    Report report;
    std::optional<RanksReport> ranks = {}; ///< of a call that was shared
};

struct Runner {
    using Step = std::function<void()>;

    std::function<CallReport(const ForwardArgs&, const Options&)> forward =
        [](const ForwardArgs& args, const Options& options) { return CallReport{flashomp::forward(args, options)}; };
    std::function<CallReport(const BackwardArgs&, const Options&)> backward =
        [](const BackwardArgs& args, const Options& options) { return CallReport{flashomp::backward(args, options)}; };
    /// Runs a step that may fail in one process alone, such as reading files: where several processes are one command,
    /// all of them throw what one has thrown.
    std::function<void(const Step&)> together = [](const Step& step) { step(); };
    /// The same of a step that one process takes for all, such as writing files.
    std::function<void(const Step&)> once = [](const Step& step) { step(); };
    /// Whether calls see whole rows, of which they repair what rounding took from D. Of 16 bits dbias and dsink else
    /// have the error that this dtype's naive baseline has, also where they are float32.
    bool repairs_rows = true;
};

} // namespace flashomp::cli
