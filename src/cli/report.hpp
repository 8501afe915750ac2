// How results are worded: numbers with units, tables, where a call ran and why.
#pragma once

#include "runner.hpp"

#include "flashomp/attention.hpp"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace flashomp::cli {

using Json = nlohmann::ordered_json;

/// "12.3 us", "4.56 ms", "7.89 s".
[[nodiscard]] std::string time_text(double seconds);

/// "512 B", "4.0 KiB", "1.5 GiB".
[[nodiscard]] std::string bytes_text(std::int64_t bytes);

/// Four digits with a decimal prefix, as the literature has it: "34.36 GB", "312.5 TFLOP/s".
[[nodiscard]] std::string decimal_text(double amount, std::string_view unit);

/// Two digits without padding: "2.1e-7", "0", "nan", "inf".
[[nodiscard]] std::string error_text(double error);

/// "openmp/host-avx512".
[[nodiscard]] std::string implementation_text(const Report& report);

/// "ran on host (2 threads), openmp/host-avx512: no GPU was found".
[[nodiscard]] std::string where_text(const Report& report);

/// Every field of a report.
[[nodiscard]] Json report_json(const Report& report);
/// The same, and "ranks" where the call was shared.
[[nodiscard]] Json report_json(const CallReport& call);

/// With schemes as the command line spells them: "all-gather", where flashomp::mpi and JSON have "all_gather".
[[nodiscard]] std::string with_flag_words(std::string text);

/// The extents of a view as an array.
[[nodiscard]] Json shape_json(const ConstTensorView& view);

/// Version, commit, compiler and flags of this build.
[[nodiscard]] Json build_json();

/// Rows of text with aligned columns; the first row is the heading.
class Table {
public:
    void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }

    /// Columns whose cells below the heading are all empty are left out.
    [[nodiscard]] std::string text() const;

private:
    std::vector<std::vector<std::string>> rows_;
};

/// Prints the object to stdout.
void print_json(const Json& json);

/// What lines on stderr begin with: "flashomp", until run_program() sets the program's own name.
[[nodiscard]] std::string& program_name();

/// Prints "<program>: <text>" as one line to stderr: printable, of bounded length. Where that cannot be written, nobody
/// reads it, and the exit status says enough.
void print_on_stderr(std::string text);

/// Prints "<program>: note: ..." lines to stderr.
void print_notes(const std::vector<std::string>& notes);

} // namespace flashomp::cli
