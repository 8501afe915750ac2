// How all ranks hear of one rank's error.
#pragma once

#include "messages.hpp"

#include <functional>
#include <string>

namespace flashomp::mpi {

/// Runs `local` on every rank, and throws on all of them where it throws on one: Error, or RunFailure where memory ran
/// out.
void expect_everywhere(const Messages& messages, const std::function<void()>& local);

/// Throws RunFailure on all ranks where one of them has a text.
void expect_no_failure(const Messages& messages, const std::string& failure);

} // namespace flashomp::mpi
