#include "bench_output.hpp"

#include "commands.hpp"
#include "progress.hpp"

#include "flashomp/device.hpp"
#include "flashomp/error.hpp"
#include "flashomp/version.hpp"

#include "atomic_file.hpp"
#include "host_threads.hpp"
#include "peaks.hpp"
#include "place.hpp"
#include "plan.hpp"
#include "traffic.hpp"
#include "traffic_run.hpp"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace flashomp::cli {

namespace {

/// This process's command line, as one line.
std::string command_line()
{
    std::ifstream file("/proc/self/cmdline", std::ios::binary);
    std::string line;
    for (std::string word; std::getline(file, word, '\0');) {
        line += (line.empty() ? "" : " ") + word;
    }
    return line;
}

cost::Peaks peaks_of(const Place& place, DType dtype)
{
    if (!place.hardware.is_device) {
        return cost::host_peaks(place.hardware.threads, offload::isa_for(*place.hardware.isa, kernel_element(dtype)),
                                dtype);
    }
    return cost::device_peaks(place.hardware.gpu.name, dtype);
}

/// This program again, for one shape and direction, with the options that choose the kernels.
std::vector<std::string> traffic_command(const BenchFlags& flags, const Place& place, const cost::Shape& shape,
                                         const std::string& direction)
{
    std::vector<std::string> words{std::filesystem::read_symlink("/proc/self/exe").string(),
                                   "bench",
                                   "--shape",
                                   shape.name(),
                                   "--direction",
                                   direction,
                                   "--dtype",
                                   std::string(flashomp::name_of(flags.run.dtype.value_or(DType::float32))),
                                   "--device",
                                   place.hardware.is_device ? std::to_string(place.hardware.device) : "host",
                                   "--backend",
                                   name_of(flags.run.backend),
                                   "--machine",
                                   name_of(flags.run.machine)};
    const Tiling& tiling = flags.tiling;
    for (const auto& [flag, value] :
         {std::pair{"--resident-rows", tiling.resident_rows}, std::pair{"--stream-rows", tiling.stream_rows},
          std::pair{"--teams", tiling.teams}, std::pair{"--team-threads", tiling.team_threads}}) {
        if (value > 0) {
            words.insert(words.end(), {flag, std::to_string(value)});
        }
    }
    if (tiling.global_memory) {
        words.emplace_back("--global-memory");
    }
    return words;
}

std::string places_text(const std::vector<bench::Row>& rows)
{
    std::map<std::string, std::size_t> places;
    for (const bench::Row& row : rows) {
        ++places[row.ran_on];
    }
    std::string text;
    for (const auto& [place, count] : places) {
        text += fmt::format("{} row{} in {} ran on {}\n", count, count == 1 ? "" : "s", rows.front().dtype, place);
    }
    return text;
}

} // namespace

void write_file(const std::string& path, const std::string& text)
{
    io::OutputSet files;
    files.add(path, [&](io::StagedFile& file) { file.write(text.data(), static_cast<std::int64_t>(text.size())); });
    files.commit();
}

void expect_writable(const std::string& path)
{
    if (!path.empty()) {
        const io::StagedFile probe(path);
    }
}

Json bench_context(const bench::RunSettings& settings)
{
    return bench_context(settings, peaks_of(choose_place(settings.options), settings.dtype));
}

Json bench_context(const bench::RunSettings& settings, const cost::Peaks& peaks)
{
    Json context;
    for (const auto& [key, text] : bench::machine_context()) {
        context[key] = Json::parse(text);
    }
    const BuildInfo& build = build_info();
    context["flashomp_version"] = build.version;
    context["flashomp_commit"] = build.commit;
    context["flashomp_compiler"] = build.compiler;
    context["flashomp_flags"] = build.flags;
    context["flashomp_host_isa"] = host_isa(settings.dtype);
    context["flashomp_threads"] = std::to_string(planned_threads(settings.options.threads));
    for (const DeviceInfo& device : devices(settings.options.backend)) {
        context[fmt::format("flashomp_device_{}", device.index)] =
            fmt::format("{}, compute capability {}, driver of CUDA {}", device.name, device.capability, device.driver);
    }
    if (settings.prepared) {
        context["flashomp_calls"] = "prepared";
    }
    context["peaks"] = {{"flops", peaks.flops},
                        {"flops_source", peaks.flops_source},
                        {"bandwidth", peaks.bandwidth},
                        {"bandwidth_source", peaks.bandwidth_source}};
    context["command"] = command_line();
    return context;
}

void print_line(const Json& json)
{
    fmt::print("{}\n", json.dump(-1, ' ', false, Json::error_handler_t::replace));
    std::fflush(stdout);
}

BenchOutput::BenchOutput(const BenchFlags& flags, const bench::RunSettings& settings, const bench::Runner& runner,
                         const std::vector<cost::Shape>& shapes)
    : flags_(flags), peaks_(peaks_of(choose_place(settings.options), settings.dtype)),
      context_(bench_context(settings, peaks_)), table_(settings, runner, shapes)
{
    expect_writable(flags_.out); // now, not after the first hour
    expect_writable(flags_.csv);
}

std::string BenchOutput::add(const bench::Row& row)
{
    rows_.push_back(row);
    const std::optional<cost::Roofline> bound = cost::roofline(row.flops, row.least_bytes, peaks_);
    rows_.back().bound_seconds = bound ? std::optional(bound->seconds) : std::nullopt;
    has_result_ = has_result_ || row.failure.empty() || row.is_wrong;
    if (!has_result_) {
        return {};
    }
    if (!flags_.out.empty()) {
        write_file(flags_.out, bench::file_text(context_, rows_));
    }
    std::string text;
    for (; !flags_.run.json && printed_ < rows_.size(); ++printed_) {
        text += (printed_ == 0 ? table_.heading() : "") + table_.line(rows_[printed_]);
    }
    return text;
}

int BenchOutput::finish() const
{
    if (rows_.empty()) { // nothing else leaves a row out
        throw Error(
            "--direction was backward, and none of the shapes has a backward pass, as shapes with a key/value cache "
            "have none; allowed with them are forward and both.");
    }
    if (!has_result_) {
        rows_.front().throw_again();
    }
    if (!flags_.csv.empty()) {
        write_file(flags_.csv, bench::csv_text(rows_));
    }
    if (flags_.run.json) {
        fmt::print("{}", bench::file_text(context_, rows_));
    } else {
        fmt::print("{}", places_text(rows_));
    }
    for (const bench::Row& row : rows_) {
        if (row.is_wrong) {
            return status_falls_short;
        }
    }
    return status_ok;
}

int run_traffic(const BenchFlags& flags, const bench::RunSettings& settings, const std::vector<cost::Shape>& shapes)
{
    const Place place = choose_place(settings.options);
    Table table;
    table.add({"pass", "shape", "read", "written", "in all", "planned: every tensor once", "planned: every block"});
    Json rows = Json::array();
    std::string tool;
    {
        Progress progress("bench: traffic");
        for (const cost::Shape& shape : shapes) {
            for (const std::string& direction : settings.directions) {
                progress.show(fmt::format("bench: traffic of {}, {}", direction, shape.name()));
                const bool backward = direction == "backward";
                const bench::MeasuredTraffic measured =
                    bench::measure_traffic(traffic_command(flags, place, shape, direction), place.hardware.is_device);
                // The same options, but one thread and the instruction set that the tool can simulate do not change
                // tiles of 64 and 128 rows.
                const Problem problem =
                    as_computed(cost::problem_of(shape, settings.dtype, backward, settings.options), place.hardware);
                const cost::Traffic tiles = cost::tile_traffic(problem, plan(problem, place.hardware));
                const cost::Traffic least = cost::least_traffic(shape, settings.dtype, backward);
                tool = measured.tool;
                const auto text = [](double bytes) { return decimal_text(bytes, "B"); };
                table.add({direction, shape.name(), text(measured.read), text(measured.written),
                           text(measured.read + measured.written), text(least.total()), text(tiles.total())});
                rows.push_back({{"direction", direction},
                                {"shape", shape.name()},
                                {"dtype", name_of(settings.dtype)},
                                {"read_bytes", measured.read},
                                {"written_bytes", measured.written},
                                {"least_bytes", least.total()},
                                {"tile_bytes", tiles.total()},
                                {"tool", measured.tool},
                                {"ran_on", place.name}});
            }
        }
    }
    Json file{{"context", bench_context(settings)}, {"traffic", rows}};
    if (!flags.out.empty()) {
        write_file(flags.out, file.dump(1) + "\n");
    }
    if (flags.run.json) {
        print_json(file);
    } else {
        fmt::print("{}counted by {}; {}\n", table.text(), tool, place.name);
    }
    return status_ok;
}

} // namespace flashomp::cli
