#include "report.hpp"

#include "flashomp/version.hpp"

#include "printable.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace flashomp::cli {

std::string time_text(double seconds)
{
    if (seconds < 1e-3) {
        return fmt::format("{:.1f} us", seconds * 1e6);
    }
    if (seconds < 1.0) {
        return fmt::format("{:.2f} ms", seconds * 1e3);
    }
    return fmt::format("{:.2f} s", seconds);
}

std::string bytes_text(std::int64_t bytes)
{
    constexpr std::array units{"KiB", "MiB", "GiB", "TiB"};
    if (bytes < 1024) {
        return fmt::format("{} B", bytes);
    }
    double amount = static_cast<double>(bytes) / 1024.0;
    std::size_t unit = 0;
    while (amount >= 1024.0 && unit + 1 < units.size()) {
        amount /= 1024.0;
        ++unit;
    }
    return fmt::format("{:.1f} {}", amount, units.at(unit));
}

std::string decimal_text(double amount, std::string_view unit)
{
    constexpr std::array prefixes{"", "k", "M", "G", "T", "P", "E"};
    std::size_t prefix = 0;
    while (amount >= 999.95 && prefix + 1 < prefixes.size()) { // which four digits would show as 1000
        amount /= 1000.0;
        ++prefix;
    }
    return fmt::format("{:.4g} {}{}", amount, prefixes.at(prefix), unit);
}

std::string error_text(double error)
{
    if (error == 0.0 || !std::isfinite(error)) {
        return fmt::format("{:g}", error);
    }
    const std::string text = fmt::format("{:.1e}", error); // 2.1e-07
    const std::size_t e = text.find('e');
    return fmt::format("{}e{}", text.substr(0, e), std::stoi(text.substr(e + 1)));
}

std::string implementation_text(const Report& report)
{
    return report.machine.empty() ? report.backend : report.backend + "/" + report.machine;
}

std::string where_text(const Report& report)
{
    // The note of a run says "running on the host: why"; the where is said already.
    const std::size_t colon = report.note.find(": ");
    const std::string why = colon == std::string::npos ? report.note : report.note.substr(colon + 2);
    const std::string by = implementation_text(report); // none where nothing was to be computed
    return fmt::format("ran on {}{}{}{}{}{}{}", report.ran_on, by.empty() ? "" : ", ", by,
                       report.tuned ? ", tuned" : "",
                       report.computed_twice ? ", computed twice (a result was not finite, or an LSE too large)" : "",
                       why.empty() ? "" : ": ", why);
}

Json report_json(const Report& report)
{
    return {{"backend", report.backend},
            {"machine", report.machine},
            {"ran_on", report.ran_on},
            {"on_device", report.on_device},
            {"tuned", report.tuned},
            {"computed_twice", report.computed_twice},
            {"note", report.note},
            {"seconds", report.seconds},
            {"extra_bytes", report.extra_bytes},
            {"staged_bytes", report.staged_bytes},
            {"standard_bytes", report.standard_bytes}};
}

Json report_json(const CallReport& call)
{
    Json json = report_json(call.report);
    if (call.ranks) {
        const RanksReport& shared = *call.ranks;
        json["ranks"] = {{"ranks", shared.ranks},
                         {"layout", shared.layout},
                         {"scheme", shared.scheme},
                         {"heads_ranks", shared.heads_ranks},
                         {"why", shared.why},
                         {"bytes_sent", shared.bytes_sent},
                         {"seconds_computing_most", shared.seconds_computing},
                         {"seconds_waiting_most", shared.seconds_waiting}};
    }
    return json;
}

std::string with_flag_words(std::string text)
{
    std::replace(text.begin(), text.end(), '_', '-');
    return text;
}

Json shape_json(const ConstTensorView& view)
{
    return std::vector<std::int64_t>(view.shape.begin(), view.shape.begin() + view.rank);
}

Json build_json()
{
    const BuildInfo& info = build_info();
    return {{"version", info.version}, {"commit", info.commit},   {"compiler", info.compiler},
            {"flags", info.flags},     {"offload", info.offload}, {"backends", info.backends}};
}

std::string Table::text() const
{
    std::vector<std::size_t> widths;
    std::vector<bool> used;
    for (std::size_t row = 0; row < rows_.size(); ++row) {
        widths.resize(std::max(widths.size(), rows_[row].size()));
        used.resize(widths.size());
        for (std::size_t column = 0; column < rows_[row].size(); ++column) {
            widths[column] = std::max(widths[column], rows_[row][column].size());
            used[column] = used[column] || (row > 0 && !rows_[row][column].empty());
        }
    }
    std::string text;
    for (const std::vector<std::string>& row : rows_) {
        std::string line;
        for (std::size_t column = 0; column < row.size(); ++column) {
            if (used[column]) {
                line += fmt::format("{:<{}}  ", printable(row[column]), widths[column]);
            }
        }
        line.erase(line.find_last_not_of(' ') + 1);
        text += line + "\n";
    }
    return text;
}

void print_json(const Json& json)
{
    fmt::print("{}\n", json.dump(2, ' ', false, Json::error_handler_t::replace));
}

std::string& program_name()
{
    static std::string name = "flashomp";
    return name;
}

void print_on_stderr(std::string text)
{
    constexpr std::size_t longest = 2000;
    std::replace(text.begin(), text.end(), '\n', ' ');
    const std::string line = program_name() + ": " + printable(text, longest) + "\n";
    static_cast<void>(std::fputs(line.c_str(), stderr));
}

void print_notes(const std::vector<std::string>& notes)
{
    for (const std::string& note : notes) {
        print_on_stderr("note: " + note);
    }
}

} // namespace flashomp::cli
