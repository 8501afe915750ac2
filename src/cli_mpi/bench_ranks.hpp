// flashomp-mpi bench.
#pragma once

#include "commands.hpp"
#include "ranks.hpp"
#include "sharding_flags.hpp"

namespace flashomp::cli {

/// `ranks` and `sharing` outlive the command.
void add_bench_ranks_command(CLI::App& app, Command& chosen, const Ranks& ranks, const SharingFlags& sharing);

} // namespace flashomp::cli
