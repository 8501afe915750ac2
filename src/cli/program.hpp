// What the programs of this command line have in common: words are parsed, the chosen command runs, and every failure
// is one sentence and an exit status.
#pragma once

#include "commands.hpp"

#include <functional>
#include <string>

namespace flashomp::cli {

/// The exit status. `say` is given the sentence of a failure.
[[nodiscard]] int run_program(CLI::App& app, const Command& chosen, int argc, char** argv,
                              const std::function<void(const std::string& sentence)>& say);

} // namespace flashomp::cli
