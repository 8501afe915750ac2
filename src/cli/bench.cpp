// flashomp bench: checks, then times, shapes and suites of shapes.
#include "bench_output.hpp"
#include "commands.hpp"
#include "parse_value.hpp"
#include "progress.hpp"

#include "flashomp/error.hpp"

#include "bench_case.hpp"
#include "option_list.hpp"
#include "safetensors.hpp"

#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

namespace flashomp::cli {

namespace {

constexpr const char* details =
    R"(Every row is checked against the float64 reference before it is timed and once more in what the timed calls left, on
the heads, rows and keys that JSON's "compared" names; one that misses its bound has no time, and the status is then 1.
Times are wall-clock of whole calls, the median of the repetitions; spread is (slowest - fastest)/median. Peak memory is
measured: outputs, statistics and scratch, as resident pages on the host and as counted allocations on a GPU. "of the
bound" is the least time that `flashomp plan` allows, each tensor crossing main memory once, over the median.

Suites:
{}
Examples:
  flashomp bench quick
  flashomp bench fa2 --dtype bfloat16 --device 0 --out results.json
  flashomp bench --shape b2_h16_n4096_d64_causal --direction forward --csv results.csv
  flashomp bench --shape b1_h1_n4096_d64 --direction forward --measure-traffic
)";

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

bench::RunSettings settings_of(const BenchFlags& flags)
{
    bench::RunSettings settings;
    settings.options = call_options({}, flags.run);
    settings.options.tiling = flags.tiling;
    settings.dtype = flags.run.dtype.value_or(DType::float32);
    if (!flags.what.directions.empty()) {
        settings.directions = flags.what.directions;
    } else if (settings.dtype == DType::float8_e4m3) {
        settings.directions = {"forward"};
    }
    settings.beside_standard =
        flags.beside_standard || (!flags.what.suite.empty() && bench::find_suite(flags.what.suite).beside_standard);
    settings.kernel_time = flags.kernel_time;
    settings.prepared = flags.prepared;
    settings.timing = flags.timing;
    return settings;
}

/// The next line of standard input. Throws Error for one that is longer than any shape: nothing may fill the memory.
bool next_line(std::string& line)
{
    constexpr std::size_t longest = 1000;
    line.clear();
    int letter = 0;
    while ((letter = std::cin.get()) != std::char_traits<char>::eof() && letter != '\n') {
        if (line.size() == longest) {
            throw Error(fmt::format("standard input has a line of more than {} bytes; a shape is shorter.", longest));
        }
        line += static_cast<char>(letter);
    }
    return letter == '\n' || !line.empty();
}

/// One shape after the other from standard input, rows to standard output, each as a line of JSON: what
/// bench/compare_pytorch.py speaks, so that one process serves it from the first shape to the last.
int serve(const BenchFlags& flags)
{
    const bench::RunSettings settings = settings_of(flags);
    bench::Runner runner(settings);
    print_line(bench_context(settings));
    bool is_wrong = false;
    for (std::string line; next_line(line);) {
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
        } catch (const std::runtime_error& error) { // Error or RunFailure: the next shape may be all right
            print_line({{"done", line}, {"error", error.what()}});
        }
    }
    return is_wrong ? status_falls_short : status_ok;
}

/// --inputs: what the calls of a row are given, for a program that is set beside this one.
int write_inputs(const BenchFlags& flags, const std::vector<cost::Shape>& shapes)
{
    if (shapes.size() != 1) {
        throw Error(fmt::format("--inputs was given with {} shapes; allowed is one.", shapes.size()));
    }
    const bench::RunSettings settings = settings_of(flags);
    bench::BenchCase bench(shapes.front(), settings.dtype, {}, Space{});
    const BackwardArgs args = bench.on_host();
    std::map<std::string, ConstTensorView> tensors{{"q", args.q}, {"k", args.k}, {"v", args.v}, {"do", args.dout}};
    const Options options = bench.options_on_host();
    for (const TensorOption& option : tensor_options) {
        if (const ConstTensorView& view = options.*option.member) {
            tensors.emplace(option.name, view);
        }
    }
    io::write_safetensors(flags.inputs, tensors);
    return status_ok;
}

/// Each output needs a file of its own: what is written last would be all that is left.
void refuse_same_file(const BenchFlags& flags)
{
    const auto same = [](const std::string& a, const std::string& b) {
        if (a.empty() || b.empty()) {
            return false;
        }
        std::error_code first, second;
        const auto one = std::filesystem::weakly_canonical(std::filesystem::absolute(a), first);
        const auto other = std::filesystem::weakly_canonical(std::filesystem::absolute(b), second);
        return !first && !second && one == other;
    };
    if (same(flags.out, flags.csv)) {
        throw Error(
            fmt::format("--out and --csv were the same file, {}; allowed are two files.", printable(flags.csv, 100)));
    }
}

int run_bench(const BenchFlags& flags)
{
    refuse_same_file(flags);
    const std::vector<cost::Shape> shapes = shapes_of(flags.what);
    if (flags.what.file == "-") {
        return serve(flags);
    }
    if (flags.what.list) {
        print_names(shapes);
        return status_ok;
    }
    if (!flags.inputs.empty()) {
        return write_inputs(flags, shapes);
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
    BenchOutput output(flags, settings, runner, shapes);
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
                [&](const bench::Row& row) { progress.print(output.add(row)); });
        }
    }
    return output.finish();
}

} // namespace

void add_bench_command(CLI::App& app, Command& chosen)
{
    CLI::App* const command = app.add_subcommand("bench", "Time, speed, peak memory and error over shapes and suites");
    command->footer(fmt::format(fmt::runtime(details), suite_list()));
    const auto flags = std::make_shared<BenchFlags>();
    add_shape_options(*command, flags->what, "a file of shapes, one a line; - serves standard input, in lines of JSON");
    add_model_option(*command, flags->what);
    command->add_flag(
        "--beside-standard", flags->beside_standard,
        "on the host and with backend cuda: standard attention too, with S and P of all heads, until memory runs out");
    add_timing_options(*command, flags->timing);
    command->add_flag("--kernel-time", flags->kernel_time,
                      "on a GPU: how long its kernels run, too, which CUPTI of the CUDA toolkit records");
    command->add_flag(
        "--prepared", flags->prepared,
        "prepare each call once and time its runs (flashomp/prepared.hpp), which plan and allocate nothing");
    command->add_flag("--measure-traffic", flags->measure_traffic,
                      "instead of times: main-memory bytes by ncu or cachegrind, beside what plan predicts");
    command->add_option("--out", flags->out, "write JSON to this file, anew after each row")
        ->type_name("FILE.json")
        ->group("Output");
    command->add_option("--csv", flags->csv, "write CSV to this file at the end")
        ->type_name("FILE.csv")
        ->group("Output");
    command
        ->add_option("--inputs", flags->inputs,
                     "run nothing; write q, k, v and do of the calls of the one shape, as backward --in takes them")
        ->type_name("FILE.safetensors")
        ->group("Output");
    add_number(*command, "--only-calls", flags->only_calls, 0, 1000000, "")->group(""); // for --measure-traffic
    add_tiling_options(*command, flags->tiling);
    add_run_options(*command, flags->run, true);
    command->get_option("--dtype")->description(
        "of the random inputs: float32 (default), bfloat16, float16 or, for the forward pass on a Hopper GPU, "
        "float8_e4m3");
    command->callback([flags, &chosen] { chosen = [flags] { return run_bench(*flags); }; });
}

} // namespace flashomp::cli
