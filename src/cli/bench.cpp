// flashomp bench: checks, then times, shapes and suites of shapes.
#include "bench_output.hpp"
#include "commands.hpp"
#include "parse_value.hpp"
#include "progress.hpp"

#include "flashomp/error.hpp"

#include <iostream>
#include <memory>
#include <utility>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

namespace flashomp::cli {

namespace {

constexpr const char* details =
    R"(Every row is checked against the float64 reference before it is timed, on the heads and rows that JSON's "compared"
names; one that misses its bound has no time, and the status is then 1. Times are wall-clock of whole calls, the median
of the repetitions; spread is (slowest - fastest)/median. Peak memory is measured: outputs, statistics and scratch, as
resident pages on the host and as counted allocations on a GPU.

Suites:
{}
Examples:
  flashomp bench quick
  flashomp bench fa2 --dtype bfloat16 --device 0 --out results.json
  flashomp bench --shape b2_h16_n4096_d64_causal --direction forward --csv results.csv
  flashomp bench --shape b1_h1_n4096_d64 --direction forward --measure-traffic
)";

std::string footer()
{
    std::string list;
    for (const bench::Suite& suite : bench::suites()) {
        list += fmt::format("  {:<7} {} ({} shapes)\n", suite.name, suite.what, suite.shapes.size());
    }
    return fmt::format(fmt::runtime(details), list);
}

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

void add_tiling_options(CLI::App& command, Tiling& tiling)
{
    const char* const group = "Tiles, for tuning";
    constexpr int most = 1 << 20;
    add_number(command, "--resident-rows", tiling.resident_rows, 1, most, "rows of the block that stays")->group(group);
    add_number(command, "--stream-rows", tiling.stream_rows, 1, most, "rows of the blocks that stream past")
        ->group(group);
    add_number(command, "--teams", tiling.teams, 1, most, "teams of a GPU launch")->group(group);
    add_number(command, "--team-threads", tiling.team_threads, 1, most, "OpenMP threads of a team (warps)")
        ->group(group);
    command.add_flag("--global-memory", tiling.global_memory, "plain machine: tiles in ordinary device memory")
        ->group(group);
}

/// All shapes the user named, in order.
std::vector<cost::Shape> shapes_of(const BenchFlags& flags)
{
    std::vector<cost::Shape> shapes;
    if (!flags.suite.empty()) {
        shapes = bench::find_suite(flags.suite).shapes;
    }
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

bench::RunSettings settings_of(const BenchFlags& flags)
{
    bench::RunSettings settings;
    settings.options = call_options({}, flags.run);
    settings.options.tiling = flags.tiling;
    settings.dtype = flags.run.dtype.value_or(DType::float32);
    if (!flags.directions.empty()) {
        settings.directions = flags.directions;
    } else if (settings.dtype == DType::float8_e4m3) {
        settings.directions = {"forward"};
    }
    settings.beside_standard =
        flags.beside_standard || (!flags.suite.empty() && bench::find_suite(flags.suite).beside_standard);
    settings.timing = flags.timing;
    return settings;
}

/// One shape after the other from standard input, rows to standard output, each as a line of JSON: what
/// bench/compare_pytorch.py speaks, so that one process serves it from the first shape to the last.
int serve(const BenchFlags& flags)
{
    const bench::RunSettings settings = settings_of(flags);
    bench::Runner runner(settings);
    print_line(bench_context(settings));
    bool is_wrong = false;
    for (std::string line; std::getline(std::cin, line);) {
        if (line.empty()) {
            continue;
        }
        try {
            runner.run(
                cost::parse_shape(line), [](const std::string&) {},
                [&](const bench::Row& row) {
                    is_wrong = is_wrong || row.is_wrong;
                    print_line(bench::row_json(row));
                });
            print_line({{"done", line}});
        } catch (const Error& error) { // the next shape may be all right
            print_line({{"done", line}, {"error", error.what()}});
        }
    }
    return is_wrong ? status_falls_short : status_ok;
}

int run_bench(const BenchFlags& flags)
{
    const std::vector<cost::Shape> shapes = shapes_of(flags);
    if (flags.file == "-") {
        return serve(flags);
    }
    if (flags.list) {
        for (const cost::Shape& shape : shapes) {
            fmt::print("{}\n", shape.name());
        }
        return status_ok;
    }
    const bench::RunSettings settings = settings_of(flags);
    if (flags.only_calls >= 0) {
        for (const cost::Shape& shape : shapes) {
            bench::Runner(settings).only_call(shape, flags.only_calls);
        }
        return status_ok;
    }
    if (flags.measure_traffic) {
        return run_traffic(flags, settings, shapes);
    }
    bench::Runner runner(settings);
    if (flags.beside_standard && !runner.has_standard()) {
        print_notes({"standard attention is timed on the host and by the cuda backend only; bench/compare_pytorch.py "
                     "has PyTorch's for a GPU"});
    }
    BenchOutput output(flags, settings);
    {
        Progress progress("bench");
        std::size_t number = 0;
        for (const cost::Shape& shape : shapes) {
            ++number;
            runner.run(
                shape,
                [&](const std::string& name) {
                    progress.show(fmt::format("bench: shape {} of {}, {}", number, shapes.size(), name));
                },
                [&](const bench::Row& row) { output.add(row); });
        }
    }
    return output.finish();
}

} // namespace

void add_bench_command(CLI::App& app, Command& chosen)
{
    CLI::App* const command = app.add_subcommand("bench", "Time, speed, peak memory and error over shapes and suites");
    command->footer(footer());
    const auto flags = std::make_shared<BenchFlags>();
    command->add_option("SUITE", flags->suite, "fa2, repro, decode, varlen or quick");
    command
        ->add_option("--shape", flags->shapes, "one more shape, such as b2_h16kv4_n4096_d128_causal; may be repeated")
        ->type_name("SHAPE")
        ->take_all()
        ->allow_extra_args(false);
    command
        ->add_option("--shapes", flags->file, "a file of shapes, one a line; - serves standard input, in lines of JSON")
        ->type_name("FILE");
    command
        ->add_option_function<std::vector<std::string>>(
            "--direction",
            [flags](const std::vector<std::string>& words) {
                for (const std::string& word : words) {
                    flags->directions.emplace_back(parse_word<const char*>(
                        "--direction", word, {{"forward", "forward"}, {"backward", "backward"}}));
                }
            },
            "forward or backward; may be repeated (default: both)")
        ->type_name("NAME")
        ->take_all()
        ->allow_extra_args(false);
    command->add_flag(
        "--beside-standard", flags->beside_standard,
        "on the host and with backend cuda: standard attention too, with S and P of all heads, until memory runs out");
    add_number(*command, "--warmup", flags->timing.warmup, 0, 1000, "calls before timing (default 1)");
    add_number(*command, "--repetitions", flags->timing.repetitions, 1, 100000, "repetitions of each row (default 5)");
    add_number(*command, "--min-time", flags->timing.least_seconds, 0.0, 3600.0,
               "a repetition is as many calls as take this many seconds (default 0.05)");
    add_number(*command, "--time-limit", flags->timing.most_seconds, 0.001, 1e6,
               "fewer repetitions, at least one, where a row would take more seconds (default 60)");
    command->add_flag("--measure-traffic", flags->measure_traffic,
                      "instead of times: main-memory bytes by ncu or cachegrind, beside what plan predicts");
    command->add_flag("--list", flags->list, "print the names of the shapes and run none");
    command->add_option("--out", flags->out, "write JSON to this file, anew after each row")
        ->type_name("FILE.json")
        ->group("Output");
    command->add_option("--csv", flags->csv, "write CSV to this file at the end")
        ->type_name("FILE.csv")
        ->group("Output");
    add_number(*command, "--only-calls", flags->only_calls, 0, 1000000, "")->group(""); // for --measure-traffic
    add_tiling_options(*command, flags->tiling);
    add_run_options(*command, flags->run, true);
    command->callback([flags, &chosen] { chosen = [flags] { return run_bench(*flags); }; });
}

} // namespace flashomp::cli
