// What `flashomp-mpi bench` finds of one way to share a call: as JSON and as a line of a table.
#pragma once

#include "report.hpp"

#include "ring_schedule.hpp"
#include "rows.hpp"

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace flashomp::cli {

/// bench::Row's time is that of the slowest rank. Other times are seconds, too.
struct RanksRow : bench::Row {
    int ranks = 1, heads_ranks = 1;
    std::string layout, scheme;                    ///< as flashomp::mpi names them; of one rank "one rank"
    double devices = 1;                            ///< ranks that have a core for each thread at the same time
    double one_rank_seconds = 0;                   ///< one rank alone, with everything
    double computing = 0;                          ///< of the rank that computes longest
    double waiting = 0;                            ///< of the rank that waits longest
    double messages = 0;                           ///< of the same call without computing
    std::int64_t bytes_sent = 0;                   ///< by all ranks
    double planned_bytes = 0, planned_seconds = 0; ///< by cost::share(), with the speeds measured here
    cost::Links links;
    std::map<std::string, double> differences; ///< of each result from that of one rank, the largest

    /// What one rank would take, divided by the devices, over the time.
    [[nodiscard]] double share_of_ideal() const
    {
        return timing.median > 0 ? one_rank_seconds / devices / timing.median : 0;
    }
    /// How much of the time of the messages was no time of the call (docs/distributed.md, "What is measured").
    [[nodiscard]] std::optional<double> overlap() const
    {
        return bytes_sent > 0 && messages > 0 ? std::optional((computing + messages - timing.median) / messages)
                                              : std::nullopt;
    }
    /// "zigzag all-gather", "contiguous grid of 2"; Ulysses has all rows, whatever the layout.
    [[nodiscard]] std::string scheme_text() const;
};

[[nodiscard]] Json ranks_row_json(const RanksRow& row);

/// {"context": ..., "benchmarks": [...]} as text.
[[nodiscard]] std::string ranks_file_text(const Json& context, const std::vector<RanksRow>& rows);

/// The heading of the table, and a line of it. `shape_width`: of the longest name.
[[nodiscard]] std::string ranks_heading(std::size_t shape_width);
[[nodiscard]] std::string ranks_line(const RanksRow& row, std::size_t shape_width);

} // namespace flashomp::cli
