// What the programs of this command line have in common: words are parsed, the chosen command runs, and every failure
// is one sentence and an exit status.
#pragma once

#include "commands.hpp"

#include <functional>
#include <string>

namespace flashomp::cli {

/// How the command line is read: it is handed the step that does it, and may throw Error for reasons of its own, before
/// anything runs or is printed.
using Reading = std::function<void(const std::function<void()>& read)>;

/// The exit status. `say` is given the sentence of a failure.
[[nodiscard]] int run_program(
    CLI::App& app, const Command& chosen, int argc, char** argv,
    const std::function<void(const std::string& sentence)>& say,
    const Reading& reading = [](const std::function<void()>& read) { read(); });

} // namespace flashomp::cli
