#include "bench_options.hpp"

#include "flashomp/error.hpp"

#include <algorithm>

namespace flashomp::cli {

void add_shape_options(CLI::App& command, ShapeFlags& flags, const std::string& shapes_help)
{
    command.add_option("SUITE", flags.suite, "fa2, repro, decode, cache, mla, varlen, models, density or quick");
    command.add_option("--shape", flags.shapes, "one more shape, such as b2_h16kv4_n4096_d128_causal; may be repeated")
        ->type_name("SHAPE")
        ->take_all()
        ->allow_extra_args(false);
    command.add_option("--shapes", flags.file, shapes_help)->type_name("FILE");
    command
        .add_option_function<std::vector<std::string>>(
            "--direction",
            [&flags](const std::vector<std::string>& words) {
                for (const std::string& word : words) {
                    flags.directions.emplace_back(parse_word<const char*>(
                        "--direction", word, {{"forward", "forward"}, {"backward", "backward"}}));
                }
            },
            "forward or backward; may be repeated (default: both)")
        ->type_name("NAME")
        ->take_all()
        ->allow_extra_args(false);
    command.add_flag("--list", flags.list, "print the names of the shapes and run none");
}

void add_model_option(CLI::App& command, ShapeFlags& flags)
{
    command
        .add_option(
            "--model", flags.models,
            "of suite models the layers whose name contains this, such as 'Llama 3' or 'decode'; may be repeated")
        ->type_name("TEXT")
        ->take_all()
        ->allow_extra_args(false);
}

namespace {

void keep_models(std::vector<cost::Shape>& shapes, const std::vector<std::string>& models)
{
    const auto is_of = [](const cost::Shape& shape, const std::string& text) {
        return shape.model.find(text) != std::string_view::npos;
    };
    for (const std::string& text : models) {
        if (std::none_of(shapes.begin(), shapes.end(), [&](const auto& shape) { return is_of(shape, text); })) {
            throw Error(fmt::format("--model was '{}', which no layer of the suite has in its name; allowed is what "
                                    "'flashomp bench models --list' prints behind the shapes.",
                                    text));
        }
    }
    const auto is_left_out = [&](const cost::Shape& shape) {
        return !models.empty() &&
               std::none_of(models.begin(), models.end(), [&](const std::string& text) { return is_of(shape, text); });
    };
    shapes.erase(std::remove_if(shapes.begin(), shapes.end(), is_left_out), shapes.end());
}

} // namespace

std::vector<cost::Shape> shapes_of(const ShapeFlags& flags)
{
    std::vector<cost::Shape> shapes;
    if (!flags.suite.empty()) {
        shapes = bench::find_suite(flags.suite).shapes;
    }
    keep_models(shapes, flags.models);
    for (const std::string& name : flags.shapes) {
        shapes.push_back(cost::parse_shape(name));
    }
    if (!flags.file.empty() && flags.file != "-") {
        const std::vector<cost::Shape> more = cost::read_shapes(flags.file);
        shapes.insert(shapes.end(), more.begin(), more.end());
    }
    if (shapes.empty() && flags.file != "-") {
        throw Error("no shape was given; a suite, --shape or --shapes is needed.");
    }
    return shapes;
}

void print_names(const std::vector<cost::Shape>& shapes)
{
    for (const cost::Shape& shape : shapes) {
        fmt::print("{}{}{}\n", shape.name(), shape.model.empty() ? "" : "  ", shape.model);
    }
}

std::string suite_list()
{
    std::string list;
    for (const bench::Suite& suite : bench::suites()) {
        list += fmt::format("  {:<7} {} ({} shapes)\n", suite.name, suite.what, suite.shapes.size());
    }
    return list;
}

void add_timing_options(CLI::App& command, bench::TimingSettings& timing)
{
    add_number(command, "--warmup", timing.warmup, 0, 1000,
               fmt::format("calls before timing (default {})", timing.warmup));
    add_number(command, "--repetitions", timing.repetitions, 1, 100000,
               fmt::format("repetitions of each row (default {})", timing.repetitions));
    add_number(
        command, "--min-time", timing.least_seconds, 0.0, 3600.0,
        fmt::format("a repetition is as many calls as take this many seconds (default {})", timing.least_seconds));
    add_number(command, "--time-limit", timing.most_seconds, 0.001, 1e6,
               fmt::format("fewer repetitions, at least one, where a row would take more seconds (default {})",
                           timing.most_seconds));
}

} // namespace flashomp::cli
