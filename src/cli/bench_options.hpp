// What `flashomp bench` and `flashomp tune` are told about shapes and timing.
#pragma once

#include "parse_value.hpp"

#include "suites.hpp"
#include "timing.hpp"

#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

namespace flashomp::cli {

struct ShapeFlags {
    std::string suite;
    std::vector<std::string> shapes;
    std::string file; ///< of shapes; "-" is standard input
    std::vector<std::string> directions;
    bool list = false;
};

/// Adds SUITE, --shape, --shapes with its help, --direction and --list.
void add_shape_options(CLI::App& command, ShapeFlags& flags, const std::string& shapes_help);

/// All shapes the user named, in order, without those of standard input. Throws Error where there is none.
[[nodiscard]] std::vector<cost::Shape> shapes_of(const ShapeFlags& flags);

/// --list.
void print_names(const std::vector<cost::Shape>& shapes);

/// A line for each suite, for --help.
[[nodiscard]] std::string suite_list();

/// Adds --warmup, --repetitions, --min-time and --time-limit, with the defaults that `timing` has.
void add_timing_options(CLI::App& command, bench::TimingSettings& timing);

/// A number option that throws Error with what is allowed.
template <class Number>
CLI::Option* add_number(CLI::App& command, const std::string& flag, Number& target, Number least, Number most,
                        const std::string& help)
{
    const std::string allowed = fmt::format("a number from {} to {}", least, most);
    return command
        .add_option_function<std::string>(
            flag,
            [&target, least, most, flag, allowed](const std::string& text) {
                target = parse_number<Number>(flag, text, allowed);
                if (!(target >= least && target <= most)) {
                    refuse_value(flag, text, allowed);
                }
            },
            help)
        ->type_name("N");
}

} // namespace flashomp::cli
