// --help of the commands that flashomp has, too, as this program runs them.
#pragma once

namespace CLI {
class App;
}

namespace flashomp::cli {

/// Gives check, forward, backward and plan of `app` examples with mpirun, says what is for one rank alone, and puts the
/// options of that under a heading of their own.
void word_help_for_ranks(CLI::App& app);

} // namespace flashomp::cli
