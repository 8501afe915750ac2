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
#include <fmt/ranges.h>

namespace flashomp::cli {

namespace {

constexpr const char* details =
    R"(For each shape and pass: rank 0 makes the call alone, while the others sleep; then all share it, by every layout and
scheme that so many ranks can take (or by --sharding and --scheme). Results of all ranks are compared with the float64
reference, by the rule of `flashomp bench`, and with those of one rank, before anything is timed and once more after.
Without SUITE, --shape and --shapes the shapes are {}.

time           median of the slowest rank; spread: (slowest - fastest)/median of the repetitions
of ideal       the time of one rank, divided by the ranks (or by as many as have cores of their own), over the time
computing      of the rank that computes longest; waiting: of the rank that waits longest
messages       the same call without computing
overlap        (computing + messages - time) / messages: 100 % where messages take no time of the call
sent           by all ranks; planned sent: what `plan` predicts; planned time: the same with the speeds measured here
nearest limit  the limit of the rule that the results come nearest to, and how much of it they use

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

bool is_shareable(const cost::Shape& shape)
{
    try {
        cost::require_shareable(shape, 1);
        return true;
    } catch (const Error&) {
        return false;
    }
}

/// Names of the suites all of whose shapes can be shared out.
std::vector<std::string> shareable_suites()
{
    std::vector<std::string> names;
    for (const bench::Suite& suite : bench::suites()) {
        if (std::all_of(suite.shapes.begin(), suite.shapes.end(), is_shareable)) {
            names.emplace_back(suite.name);
        }
    }
    return names;
}

void expect_shareable_suite(const std::string& name)
{
    const std::vector<std::string> names = shareable_suites();
    if (!name.empty() && std::find(names.begin(), names.end(), name) == names.end()) {
        throw Error(fmt::format("SUITE was '{}'; allowed over ranks is one of {}.", name, fmt::join(names, ", ")));
    }
}

std::vector<cost::Shape> shapes_or_usual(const ShapeFlags& what)
{
    if (what.file == "-") {
        throw Error("--shapes was '-'; allowed is a file, as ranks share no standard input.");
    }
    expect_shareable_suite(what.suite);
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
        if (sharing.layout) {
            throw Error("--sharding was given without --scheme; bench takes both or neither.");
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
    const std::vector<mpi::Sharding> asked = asked_for(sharing);
    std::vector<cost::Shape> shapes;
    ranks.together([&] {
        shapes = shapes_or_usual(flags.what);
        for (const cost::Shape& shape : shapes) {
            cost::require_shareable(shape, ranks.size());
            for (const mpi::Sharding& one : asked) {
                expect_heads(one, ranks.size(), shape.heads_q, shape.name());
            }
        }
    });
    if (flags.what.list) {
        print_names(shapes);
        return status_ok;
    }
    const bench::RunSettings settings = settings_of(flags);
    const RanksBench runs(ranks, settings, asked);
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
        const auto is_result = [&](const RanksRow& row) {
            return row.ranks == ranks.size() && (row.failure.empty() || row.is_wrong);
        };
        if (std::none_of(rows.begin(), rows.end(), is_result)) { // one rank alone is no result of many
            std::find_if(rows.begin(), rows.end(), [](const RanksRow& row) {
                return !row.failure.empty();
            })->throw_again();
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
    command->footer(fmt::format(details, fmt::join(usual_shapes, " and ")));
    const auto flags = std::make_shared<RanksBenchFlags>();
    add_shape_options(*command, flags->what, "a file of shapes, one a line");
    command->get_option("SUITE")->description(fmt::format("one of {}", fmt::join(shareable_suites(), ", ")));
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
