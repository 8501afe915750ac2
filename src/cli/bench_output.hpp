// What `flashomp bench` was told, and what it prints and writes.
#pragma once

#include "attention_options.hpp"
#include "bench_options.hpp"
#include "bench_table.hpp"
#include "report.hpp"

#include "peaks.hpp"
#include "run.hpp"

#include <cstddef>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace flashomp::cli {

struct BenchFlags {
    RunFlags run;
    Tiling tiling;
    ShapeFlags what;
    bool beside_standard = false;
    bool prepared = false;
    bool measure_traffic = false;
    bool kernel_time = false;
    int only_calls = -1;
    bench::TimingSettings timing;
    std::string out, csv, inputs;
};

/// Machine, build, command and peaks: what every file of results begins with.
[[nodiscard]] Json bench_context(const bench::RunSettings& settings);
[[nodiscard]] Json bench_context(const bench::RunSettings& settings, const cost::Peaks& peaks);

/// The file is there as a whole or as it was. Throws Error when it cannot be written.
void write_file(const std::string& path, const std::string& text);
/// Throws the same now, and leaves no trace: an empty path is no file.
void expect_writable(const std::string& path);

/// One line of JSON to stdout, at once.
void print_line(const Json& json);

/// Gathers rows and words them as they come; keeps the JSON file up to date after each.
class BenchOutput {
public:
    /// Throws Error when a file could not be written.
    BenchOutput(const BenchFlags& flags, const bench::RunSettings& settings, const bench::Runner& runner,
                const std::vector<cost::Shape>& shapes);

    /// What is to be printed now; nothing with --json, and until a row has a result.
    [[nodiscard]] std::string add(const bench::Row& row);

    /// Prints the rest and returns the exit status. Throws the first row's failure, with nothing written,
    /// when no row has a result.
    [[nodiscard]] int finish() const;

private:
    const BenchFlags& flags_;
    cost::Peaks peaks_;
    Json context_;
    BenchTable table_;
    std::vector<bench::Row> rows_;
    std::size_t printed_ = 0; ///< rows
    bool has_result_ = false; ///< a row was timed, or found wrong
};

/// --measure-traffic: counts and prints; returns the exit status.
[[nodiscard]] int run_traffic(const BenchFlags& flags, const bench::RunSettings& settings,
                              const std::vector<cost::Shape>& shapes);

} // namespace flashomp::cli
