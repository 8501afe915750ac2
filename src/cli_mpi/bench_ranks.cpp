#include "bench_ranks.hpp"

#include "attention_options.hpp"
#include "bench_options.hpp"
#include "bench_output.hpp"
#include "ranks_bench.hpp"
#include "ranks_rows.hpp"

#include "flashomp/error.hpp"

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

namespace flashomp::cli {

namespace {

constexpr const char* details =
    R"(For each shape and pass: rank 0 makes the call alone, while the others sleep; then all share it, by every layout and
scheme that so many ranks can take (or by --sharding and --scheme). Results of all ranks are compared with the float64
reference, by the rule of `flashomp bench`, and with those of one rank, before anything is timed and once more after.

time       median of the slowest rank
of ideal   the time of one rank, divided by the ranks (or by as many as have cores of their own), over the time
computing  of the rank that computes longest; waiting: of the rank that waits longest
messages   the same call without computing
overlap    (computing + messages - time) / messages: 100 % where messages take no time of the call
sent       by all ranks, and what `plan` predicts; planned time: with the speeds measured here

Examples:
  mpirun -n 2 flashomp-mpi bench --threads 1
  mpirun -n 4 flashomp-mpi bench --shape b1_h8_n8192_d64_causal --dtype bfloat16 --out results.json
  mpirun -n 4 flashomp-mpi bench --sharding zigzag --scheme ring --direction forward --json
)";

/// A mask under which shards have different work, and none.
constexpr std::array usual_shapes{"b1_h8_n4096_d64_causal", "b1_h8_n4096_d64"};

struct RanksBenchFlags {
    RunFlags run;
    ShapeFlags what;
    bench::TimingSettings timing;
    std::string out;
};

bench::RunSettings settings_of(const RanksBenchFlags& flags)
{
    bench::RunSettings settings;
    settings.options = call_options({}, flags.run);
    settings.dtype = flags.run.dtype.value_or(DType::float32);
    if (!flags.what.directions.empty()) {
        settings.directions = flags.what.directions;
    }
    settings.timing = flags.timing;
    return settings;
}

std::vector<cost::Shape> shapes_or_usual(const ShapeFlags& what)
{
    if (what.file == "-") {
        throw Error("--shapes was '-'; allowed is a file, as ranks share no standard input.");
    }
    if (!what.suite.empty() || !what.shapes.empty() || !what.file.empty()) {
        return shapes_of(what);
    }
    std::vector<cost::Shape> shapes;
    shapes.reserve(usual_shapes.size());
    for (const char* const name : usual_shapes) {
        shapes.push_back(cost::parse_shape(name));
    }
    return shapes;
}

/// The ways to share a call that were asked for; none: all there are.
std::vector<mpi::Sharding> asked_for(const SharingFlags& sharing)
{
    if (!sharing.scheme) {
        if (sharing.layout || sharing.heads_ranks != 0) {
            throw Error("--sharding or --heads-ranks was given without --scheme; bench takes them together.");
        }
        return {};
    }
    return {sharing.sharding()};
}

Json context_of(const bench::RunSettings& settings, const Ranks& ranks, const Ranks::Host& host)
{
    Json context = bench_context(settings);
    std::string library(MPI_MAX_LIBRARY_VERSION_STRING, '\0');
    int length = 0;
    MPI_Get_library_version(library.data(), &length);
    library.resize(static_cast<std::size_t>(length));
    context["mpi"] = library.substr(0, library.find_first_of(",\n"));
    context["ranks"] = ranks.size();
    context["ranks_of_host"] = host.ranks;
    context["cores_of_host"] = host.cores;
    return context;
}

int run_bench_ranks(const RanksBenchFlags& flags, const Ranks& ranks, const SharingFlags& sharing)
{
    std::vector<cost::Shape> shapes;
    ranks.together([&] {
        shapes = shapes_or_usual(flags.what);
        for (const cost::Shape& shape : shapes) {
            cost::require_shareable(shape, ranks.size());
        }
    });
    if (flags.what.list) {
        print_names(shapes);
        return status_ok;
    }
    const bench::RunSettings settings = settings_of(flags);
    const RanksBench runs(ranks, settings, asked_for(sharing));
    const Ranks::Host host = ranks.host();
    std::size_t width = std::string("shape").size();
    for (const cost::Shape& shape : shapes) {
        width = std::max(width, shape.name().size());
    }
    Json context;
    ranks.once([&] {
        expect_writable(flags.out);
        context = context_of(settings, ranks, host);
        if (!flags.run.json) {
            fmt::print("{} rank{} in {}, {} of them on this host of {} core{}; {}\n{}", ranks.size(),
                       ranks.size() == 1 ? "" : "s", name_of(settings.dtype), host.ranks, host.cores,
                       host.cores == 1 ? "" : "s", context["mpi"].get<std::string>(), ranks_heading(width));
        }
    });
    std::vector<RanksRow> rows;
    for (const cost::Shape& shape : shapes) {
        runs.run(shape, [&](const RanksRow& row) {
            rows.push_back(row);
            if (!flags.out.empty()) {
                write_file(flags.out, ranks_file_text(context, rows));
            }
            if (!flags.run.json) {
                fmt::print("{}", ranks_line(row, width));
                std::fflush(stdout);
            }
        });
    }
    int status = status_ok;
    ranks.once([&] {
        if (flags.run.json) {
            fmt::print("{}", ranks_file_text(context, rows));
        }
        const auto is_result = [](const RanksRow& row) { return row.failure.empty() || row.is_wrong; };
        if (std::none_of(rows.begin(), rows.end(), is_result)) {
            rows.front().throw_again();
        }
        const bool is_wrong = std::any_of(rows.begin(), rows.end(), [](const RanksRow& row) { return row.is_wrong; });
        status = is_wrong ? status_falls_short : status_ok;
    });
    return status;
}

} // namespace

void add_bench_ranks_command(CLI::App& app, Command& chosen, const Ranks& ranks, const SharingFlags& sharing)
{
    CLI::App* const command = app.add_subcommand("bench", "Share of the ideal, overlap and bytes sent of each scheme");
    command->footer(details);
    const auto flags = std::make_shared<RanksBenchFlags>();
    add_shape_options(*command, flags->what, "a file of shapes, one a line");
    add_timing_options(*command, flags->timing);
    command->add_option("--out", flags->out, "write JSON to this file, anew after each row")
        ->type_name("FILE.json")
        ->group("Output");
    add_run_options(*command, flags->run);
    command->get_option("--dtype")->description("of the random inputs: float32 (default), bfloat16 or float16");
    command->callback([flags, &ranks, &sharing, &chosen] {
        chosen = [flags, &ranks, &sharing] { return run_bench_ranks(*flags, ranks, sharing); };
    });
}

} // namespace flashomp::cli
