// What forward and backward print when they are done.
#pragma once

#include "attention_inputs.hpp"
#include "attention_outputs.hpp"
#include "runner.hpp"

#include "flashomp/attention.hpp"

#include <string>
#include <utility>
#include <vector>

namespace flashomp::cli {

/// One finished command.
struct Summary {
    std::string command;
    const AttentionInputs* inputs = nullptr;
    Options options;
    Layout layout = Layout::bshd;
    std::vector<std::pair<std::string, CallReport>> passes; ///< forward, backward: those that ran
    std::vector<Written> written;
};

/// Notes to stderr, the rest to stdout: as text that ends with where it ran and why, or as one JSON object.
void print_summary(const Summary& summary, bool json);

} // namespace flashomp::cli
