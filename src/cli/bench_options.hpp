// What `flashomp bench` and `flashomp tune` are told about shapes and timing.
#pragma once

#include "number_option.hpp"

#include "suites.hpp"
#include "timing.hpp"

#include <string>
#include <vector>

namespace flashomp::cli {

struct ShapeFlags {
    std::string suite;
    std::vector<std::string> shapes;
    std::vector<std::string> models; ///< of the suite's shapes those whose model's name contains one of these
    std::string file;                ///< of shapes; "-" is standard input
    std::vector<std::string> directions;
    bool list = false;
};

/// Adds SUITE, --shape, --shapes with its help, --direction and --list.
void add_shape_options(CLI::App& command, ShapeFlags& flags, const std::string& shapes_help);

/// Adds --model, for programs that have suite models.
void add_model_option(CLI::App& command, ShapeFlags& flags);

/// All shapes the user named, in order, without those of standard input. Throws Error where there is none.
[[nodiscard]] std::vector<cost::Shape> shapes_of(const ShapeFlags& flags);

/// --list: a name a line, and behind it whose shape it is, where that is known.
void print_names(const std::vector<cost::Shape>& shapes);

/// A line for each suite, for --help.
[[nodiscard]] std::string suite_list();

/// Adds --warmup, --repetitions, --min-time and --time-limit, with the defaults that `timing` has.
void add_timing_options(CLI::App& command, bench::TimingSettings& timing);

} // namespace flashomp::cli
