// flashomp tune: which plans are the fastest here, and a table of them for calls to come.
#include "attention_options.hpp"
#include "bench_options.hpp"
#include "bench_output.hpp"
#include "commands.hpp"
#include "progress.hpp"
#include "tune_output.hpp"

#include "file.hpp"
#include "place.hpp"
#include "printable.hpp"
#include "store.hpp"

#include "flashomp/error.hpp"

#include <algorithm>
#include <filesystem>
#include <limits>
#include <memory>
#include <utility>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace flashomp::cli {

namespace {

constexpr const char* default_suite = "quick";

constexpr const char* details =
    R"(For each shape, the plans that could compute it where the call runs: on the host block sizes, on a GPU tile machines,
teams and the plain machine's blocks. Each runs once on outputs filled with NaN and is checked against the float64
reference; those that are right are timed, a repetition of each in turn. The automatic plan stays unless another is
faster by --min-gain, twice: among all, and then with only the two in turn. Status 1: a candidate was wrong.

The best goes to the table, for calls with shapes of the same class, which docs/tuning.md describes, sizes rounded up to
powers of two. It counts for this device, driver and build.

The table is the file that FLASHOMP_TUNING names, else flashomp/tuning.json in $XDG_CACHE_HOME or in ~/.cache.
FLASHOMP_TUNING=off makes calls ignore it and the table that was shipped, FLASHOMP_TUNING=shipped all but that one.

Suites:
{}
Examples:
  flashomp tune                                                     # suite quick, float32
  flashomp tune fa2 --dtype bfloat16 --device 0
  flashomp tune --shape b2_h16_n4096_d64_causal --direction forward --dry-run
)";

struct TuneFlags {
    RunFlags run;
    ShapeFlags what;
    bench::TimingSettings timing{.repetitions = 7};
    double softcap = 0;
    double least_gain = 3; ///< percent
    bool dry_run = false;
    std::string out;
};

bench::TuneSettings settings_of(const TuneFlags& flags)
{
    if (flags.run.backend == Backend::reference) {
        refuse_value("--backend", name_of(flags.run.backend),
                     "one of auto, openmp, cuda, which have plans to choose from");
    }
    bench::TuneSettings settings;
    settings.options = call_options({}, flags.run);
    settings.options.softcap = flags.softcap;
    settings.dtype = flags.run.dtype.value_or(DType::float32);
    settings.timing = flags.timing;
    settings.least_gain = flags.least_gain / 100;
    return settings;
}

/// Where what is found goes. Throws Error where it cannot.
std::filesystem::path target_of(const TuneFlags& flags)
{
    if (flags.dry_run) {
        return {};
    }
    const tuning::Place place = tuning::user_place();
    std::filesystem::path target = flags.out.empty() ? place.file : std::filesystem::path(flags.out);
    if (target.empty()) {
        if (place.is_off || place.is_shipped_only) {
            throw Error(fmt::format(
                "FLASHOMP_TUNING was {}; allowed with tune is the name of a file, or anything with --out or --dry-run.",
                place.is_off ? "off" : "shipped"));
        }
        throw Error("HOME was not set; FLASHOMP_TUNING, --out or --dry-run is needed to say where the table goes.");
    }
    tuning::expect_storable(target);
    return target;
}

std::string summary(const std::vector<bench::Tuned>& all, const TuneFlags& flags, const std::filesystem::path& target)
{
    const auto kept =
        std::count_if(all.begin(), all.end(), [](const bench::Tuned& one) { return one.entry().has_value(); });
    const auto changed = std::count_if(all.begin(), all.end(), [](const bench::Tuned& one) { return one.best != 0; });
    return fmt::format("{} of {} are faster with another plan than the automatic one; {}", changed, kept,
                       flags.dry_run    ? "nothing was stored (--dry-run)"
                       : target.empty() ? "not all of it was stored"
                                        : fmt::format("stored in {}", target.string()));
}

int finish(const std::vector<bench::Tuned>& all, const TuneFlags& flags, const bench::TuneSettings& settings,
           const std::filesystem::path& target)
{
    if (std::none_of(all.begin(), all.end(),
                     [](const bench::Tuned& one) { return one.failure.empty() || one.has_wrong(); })) {
        all.front().throw_again();
    }
    if (flags.run.json) {
        bench::RunSettings where;
        where.options = settings.options;
        where.dtype = settings.dtype;
        print_json({{"command", "tune"},
                    {"context", bench_context(where)},
                    {"table", target.empty() ? Json() : Json(target.string())},
                    {"tuned", tuned_json(all)}});
    } else {
        print_tuned(all);
        fmt::print("{}\nran on {}\n", printable(summary(all, flags, target)), choose_place(settings.options).name);
    }
    const bool is_wrong = std::any_of(all.begin(), all.end(), [](const bench::Tuned& one) { return one.has_wrong(); });
    return is_wrong ? status_falls_short : status_ok;
}

int run_tune(const TuneFlags& flags)
{
    ShapeFlags what = flags.what;
    if (what.suite.empty() && what.shapes.empty() && what.file.empty()) {
        what.suite = default_suite;
    }
    if (what.file == "-") {
        refuse_value("--shapes", what.file, "the name of a file");
    }
    const std::vector<cost::Shape> shapes = shapes_of(what);
    if (what.list) {
        print_names(shapes);
        return status_ok;
    }
    if (what.directions.empty()) {
        what.directions = {"forward", "backward"};
    }
    const bench::TuneSettings settings = settings_of(flags);
    const tuning::Key key = tuning_key(choose_place(settings.options).hardware);
    const std::filesystem::path target = target_of(flags);
    std::vector<bench::Tuned> all;
    std::string not_stored; ///< why
    {
        Progress progress("tune");
        for (const cost::Shape& shape : shapes) {
            for (const std::string& direction : what.directions) {
                const std::string label = fmt::format("tune: {} of {}, {} {}", all.size() + 1,
                                                      shapes.size() * what.directions.size(), direction, shape.name());
                const bench::Tuned& found =
                    all.emplace_back(tune(shape, direction == "backward", settings, [&](const std::string& step) {
                        progress.show(fmt::format("{}, {}", label, step));
                    }));
                const auto entry = found.entry();
                if (!entry || target.empty() || !not_stored.empty()) {
                    continue;
                }
                try { // now: what is found stays if this is stopped
                    tuning::store(target, {key, {{found.shape_class, *entry}}});
                } catch (const Error& error) {
                    not_stored = error.what();
                }
            }
        }
    }
    const int status = finish(all, flags, settings, not_stored.empty() ? target : std::filesystem::path());
    if (!not_stored.empty()) {
        throw Error(not_stored);
    }
    return status;
}

} // namespace

void add_tune_command(CLI::App& app, Command& chosen)
{
    CLI::App* const command =
        app.add_subcommand("tune", "Finds the fastest plans for shapes, and keeps them for later calls");
    command->footer(fmt::format(fmt::runtime(details), suite_list()));
    const auto flags = std::make_shared<TuneFlags>();
    add_shape_options(*command, flags->what, "a file of shapes, one a line (default, without any shape: suite quick)");
    add_model_option(*command, flags->what);
    add_number(*command, "--softcap", flags->softcap, 0.0, static_cast<double>(std::numeric_limits<float>::max()),
               "tunes for modified scores (softcap, ALiBi, bias, dropout), with this softcap");
    add_timing_options(*command, flags->timing);
    add_number(*command, "--min-gain", flags->least_gain, 0.0, 100.0,
               "percent by which a plan must be faster than the automatic one to be chosen (default 3)");
    command->add_flag("--dry-run", flags->dry_run, "store nothing")->group("Output");
    command->add_option("--out", flags->out, "store in this file instead of the user's table; other entries of it stay")
        ->type_name("FILE.json")
        ->group("Output");
    add_run_options(*command, flags->run);
    command->remove_option(command->get_option("--machine")); // what is to be found out
    command->get_option("--dtype")->description("float32 (default), bfloat16 or float16");
    command->get_option("--backend")
        ->description("auto (default: cuda where it is built and finds a GPU, else openmp), openmp or cuda");
    command->callback([flags, &chosen] { chosen = [flags] { return run_tune(*flags); }; });
}

} // namespace flashomp::cli
