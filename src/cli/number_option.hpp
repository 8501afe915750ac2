// Options that are numbers with a least and a most.
#pragma once

#include "parse_value.hpp"

#include <string>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

namespace flashomp::cli {

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
