// What every rank was told, before one of them waits for what another never does.
#pragma once

#include "ranks.hpp"

#include <functional>

namespace CLI {
class App;
}

namespace flashomp::cli {

/// Takes the step that reads the command line into `app`. Throws the same Error on all ranks where one of them cannot
/// read its own, or was told another command than rank 0, such as --help, or other options that all ranks need alike.
/// Collective.
void read_together(const Ranks& ranks, const CLI::App& app, const std::function<void()>& read);

} // namespace flashomp::cli
