// flashomp_bench: times forward and backward over a list of shapes (Google Benchmark). Every row carries backend,
// machine, where it ran and its error against the float64 reference; a row whose error exceeds the bound is an
// error, not a time.
#include "bench_case.hpp"

#include "flashomp/device.hpp"
#include "flashomp/version.hpp"

#include <CLI/CLI.hpp>
#include <benchmark/benchmark.h>
#include <fmt/format.h>
#include <map>
#include <omp.h>

namespace flashomp::bench {
namespace {

struct Setup {
    std::vector<Shape> shapes;
    std::vector<DType> dtypes;
    std::vector<std::string> directions;
    Options options;
    bool on_device = false;
};

void run(benchmark::State& state, const Setup& setup, const Shape& shape, DType dtype, bool backward)
{
    try {
        BenchCase bench(shape, dtype, setup.options, setup.on_device);
        bench.poison();
        Report report = bench.forward();
        if (backward) {
            report = bench.backward();
        }
        const Accuracy accuracy = bench.check(backward);
        if (!accuracy.is_good()) {
            state.SkipWithError(fmt::format("error o {} (bound {}), dq {}, dk {}, dv {} (bound {})", accuracy.o,
                                            accuracy.bound_o, accuracy.dq, accuracy.dk, accuracy.dv,
                                            accuracy.bound_gradient)
                                    .c_str());
            return;
        }
        for (auto _ : state) {
            report = backward ? bench.backward() : bench.forward();
        }
        state.SetLabel(fmt::format("{}:{} on {}", report.backend, report.machine, report.ran_on));
        state.counters["TFLOP/s"] =
            benchmark::Counter(shape.flops(backward) * 1e-12, benchmark::Counter::kIsIterationInvariantRate);
        state.counters["error_o"] = accuracy.o;
        state.counters["bound_o"] = accuracy.bound_o;
        state.counters["error_lse"] = accuracy.lse;
        if (backward) {
            state.counters["error_dq"] = accuracy.dq;
            state.counters["bound_gradient"] = accuracy.bound_gradient;
        }
        if (backward && accuracy.has_dkv) {
            state.counters["error_dk"] = accuracy.dk;
            state.counters["error_dv"] = accuracy.dv;
        }
        state.counters["on_device"] = report.on_device ? 1 : 0;
        state.counters["extra_bytes"] = static_cast<double>(report.extra_bytes);
        state.counters["standard_bytes"] = static_cast<double>(report.standard_bytes);
    } catch (const Error& error) {
        state.SkipWithError(error.what());
    }
}

void add_context(const Options& options)
{
    const BuildInfo& build = build_info();
    benchmark::AddCustomContext("flashomp_version", build.version);
    benchmark::AddCustomContext("flashomp_commit", build.commit);
    benchmark::AddCustomContext("flashomp_compiler", build.compiler);
    benchmark::AddCustomContext("flashomp_flags", build.flags);
    benchmark::AddCustomContext("flashomp_host_isa", host_isa());
    benchmark::AddCustomContext("flashomp_threads",
                                std::to_string(options.threads > 0 ? options.threads : omp_get_max_threads()));
    for (const DeviceInfo& device : devices()) {
        benchmark::AddCustomContext(
            fmt::format("flashomp_device_{}", device.index),
            fmt::format("{}, compute capability {}, driver {}", device.name, device.capability, device.driver));
    }
}

int main(int argc, char** argv)
{
    CLI::App app("Times attention over a list of shapes; every row carries its error and where it ran.\n"
                 "Options of Google Benchmark (--benchmark_out=FILE, --benchmark_repetitions=N, ...) pass through.");
    std::string shapes = "bench/shapes/foundation.txt";
    std::vector<std::string> dtypes{"float32"};
    Setup setup;
    setup.directions = {"forward", "backward"};
    const std::map<std::string, DType> dtype_names{
        {"float32", DType::float32}, {"bfloat16", DType::bfloat16}, {"float16", DType::float16}};
    const std::map<std::string, Backend> backends{{"openmp", Backend::openmp}, {"reference", Backend::reference}};
    const std::map<std::string, Machine> machines{{"auto", Machine::automatic},
                                                  {"host", Machine::host},
                                                  {"plain", Machine::plain},
                                                  {"hopper", Machine::hopper},
                                                  {"tensor", Machine::tensor}};
    const std::map<std::string, Device::Kind> kinds{{"host", Device::Kind::host}, {"gpu", Device::Kind::gpu}};
    setup.options.backend = Backend::openmp;
    setup.options.device.kind = Device::Kind::host;
    app.add_option("--shapes", shapes, "File of shapes")->capture_default_str();
    app.add_option("--dtype", dtypes, "float32, bfloat16, float16; several are timed in turn")
        ->check(CLI::IsMember(dtype_names));
    app.add_option("--direction", setup.directions, "forward, backward or both")
        ->check(CLI::IsMember({"forward", "backward"}));
    app.add_option("--backend", setup.options.backend, "openmp or reference")->transform(CLI::Transformer(backends));
    app.add_option("--machine", setup.options.machine, "auto, host, plain or tensor")
        ->transform(CLI::Transformer(machines));
    app.add_option("--device", setup.options.device.kind, "host or gpu (device 0)")->transform(CLI::Transformer(kinds));
    std::vector<int> blocks;
    Tiling& tiling = setup.options.tiling;
    app.add_option("--blocks", blocks, "Resident,stream rows of a tile")->delimiter(',')->expected(2);
    app.add_option("--teams", tiling.teams, "Teams of a GPU launch");
    app.add_option("--team-threads", tiling.team_threads, "Threads of a team (warps)");
    app.add_flag("--global-memory", tiling.global_memory, "Plain machine: tiles in ordinary device memory");
    app.add_option("--threads", setup.options.threads, "Host threads");
    app.allow_extras();
    CLI11_PARSE(app, argc, argv);

    if (!blocks.empty()) {
        tiling.resident_rows = blocks[0];
        tiling.stream_rows = blocks[1];
    }
    try {
        setup.shapes = read_shapes(shapes);
        setup.on_device = setup.options.device.kind == Device::Kind::gpu;
        add_context(setup.options);
    } catch (const Error& error) {
        fmt::print(stderr, "flashomp_bench: {}\n", error.what());
        return 2;
    }
    for (const std::string& dtype : dtypes) {
        setup.dtypes.push_back(dtype_names.at(dtype));
    }
    for (const Shape& shape : setup.shapes) {
        for (const DType dtype : setup.dtypes) {
            for (const std::string& direction : setup.directions) {
                benchmark::RegisterBenchmark(
                    fmt::format("{}/{}/{}", direction, name_of(dtype), shape.name()).c_str(),
                    [&, dtype, shape, backward = direction == "backward"](benchmark::State& state) {
                        run(state, setup, shape, dtype, backward);
                    })
                    ->UseRealTime()
                    ->Unit(benchmark::kMillisecond);
            }
        }
    }
    std::vector<std::string> rest = app.remaining();
    std::vector<char*> remaining{argv[0]};
    for (std::string& argument : rest) {
        remaining.push_back(argument.data());
    }
    int count = static_cast<int>(remaining.size());
    benchmark::Initialize(&count, remaining.data());
    if (benchmark::ReportUnrecognizedArguments(count, remaining.data())) {
        return 2;
    }
    benchmark::RunSpecifiedBenchmarks();
    benchmark::Shutdown();
    return 0;
}

} // namespace
} // namespace flashomp::bench

int main(int argc, char** argv)
{
    return flashomp::bench::main(argc, argv);
}
