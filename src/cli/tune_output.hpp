// What `flashomp tune` found, as text and as JSON.
#pragma once

#include "report.hpp"

#include "tune.hpp"

#include <vector>

#include <nlohmann/json.hpp>

namespace flashomp::cli {

/// A table of candidates for each shape and direction, and what was chosen.
void print_tuned(const std::vector<bench::Tuned>& all);

/// Everything, refused candidates included.
[[nodiscard]] Json tuned_json(const std::vector<bench::Tuned>& all);

} // namespace flashomp::cli
