// The subcommands. Each add_*_command() registers one with CLI11; when the user names it, `chosen` becomes what
// main() then runs: a function that returns the exit status, throws Error for bad input and RunFailure when the machine
// fails.
#pragma once

#include <functional>

namespace CLI {
class App;
}

namespace flashomp::cli {

struct Runner;
struct PlannedRanks;
using Command = std::function<int()>;

/// Exit statuses of every command.
constexpr int status_ok = 0;
constexpr int status_falls_short = 1; ///< check, bench, tune: something misses its bound
constexpr int status_bad_input = 2;
constexpr int status_run_failed = 3; ///< the input was good, but the machine failed

void add_info_command(CLI::App& app, Command& chosen);
void add_forward_command(CLI::App& app, Command& chosen, const Runner& runner);
void add_backward_command(CLI::App& app, Command& chosen, const Runner& runner);
void add_check_command(CLI::App& app, Command& chosen, const Runner& runner);
void add_plan_command(CLI::App& app, Command& chosen, const Runner& runner, const PlannedRanks& ranks);
void add_bench_command(CLI::App& app, Command& chosen); ///< in builds with FLASHOMP_BUILD_BENCH
void add_tune_command(CLI::App& app, Command& chosen);  ///< the same

} // namespace flashomp::cli
