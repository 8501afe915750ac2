#include "ranks_rows.hpp"

#include "flashomp/mpi.hpp"

#include <array>
#include <cmath>
#include <cstddef>

#include <fmt/format.h>

namespace flashomp::cli {

namespace {

using Cells = std::array<std::string, 13>;

std::string line_of(const Cells& cells, std::size_t shape_width, const std::string& last)
{
    constexpr std::array<std::size_t, 13> widths{9, 0, 24, 10, 7, 9, 10, 10, 10, 8, 10, 12, 12};
    std::string text;
    for (std::size_t i = 0; i < cells.size(); ++i) {
        text += fmt::format("{:<{}}  ", cells.at(i), i == 1 ? shape_width : widths.at(i));
    }
    text += last;
    text.erase(text.find_last_not_of(' ') + 1);
    return text + "\n";
}

} // namespace

std::string RanksRow::scheme_text() const
{
    if (ranks == 1 || scheme == mpi::name_of(mpi::Scheme::ulysses)) {
        return scheme;
    }
    const bool is_grid = scheme == mpi::name_of(mpi::Scheme::grid);
    return fmt::format("{} {}{}", layout, with_flag_words(scheme), is_grid ? fmt::format(" of {}", heads_ranks) : "");
}

Json ranks_row_json(const RanksRow& row)
{
    Json json = bench::row_json(row);
    json["ranks"] = row.ranks;
    json["layout"] = row.layout;
    json["scheme"] = row.scheme;
    json["heads_ranks"] = row.heads_ranks;
    json["devices"] = row.devices;
    json["ranks_share_cores"] = row.devices < row.ranks;
    for (const auto& [result, difference] : row.differences) {
        json["difference_" + result] = difference;
    }
    if (!row.failure.empty()) {
        return json;
    }
    json["one_rank_time"] = row.one_rank_seconds * 1e3;
    json["share_of_ideal"] = row.share_of_ideal();
    json["computing_time"] = row.computing * 1e3;
    json["waiting_time"] = row.waiting * 1e3;
    json["messages_time"] = row.messages * 1e3;
    const std::optional<double> overlap = row.overlap();
    json["overlap"] = overlap ? Json(*overlap) : Json();
    json["bytes_sent"] = row.bytes_sent;
    json["planned_bytes"] = row.planned_bytes;
    json["planned_time"] = row.planned_seconds * 1e3;
    json["link_bandwidth"] = std::isfinite(row.links.bandwidth) ? Json(row.links.bandwidth) : Json();
    json["link_latency"] = row.links.latency;
    return json;
}

std::string ranks_file_text(const Json& context, const std::vector<RanksRow>& rows)
{
    Json file{{"context", context}, {"benchmarks", Json::array()}};
    for (const RanksRow& row : rows) {
        file["benchmarks"].push_back(ranks_row_json(row));
    }
    return file.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string ranks_heading(std::size_t shape_width)
{
    return line_of({"pass", "shape", "scheme", "time", "spread", "of ideal", "computing", "waiting", "messages",
                    "overlap", "sent", "planned sent", "planned time"},
                   shape_width, "nearest limit");
}

std::string ranks_line(const RanksRow& row, std::size_t shape_width)
{
    if (!row.failure.empty()) {
        return line_of({row.direction, row.shape, row.scheme_text()}, shape_width, row.failure);
    }
    const std::optional<double> overlap = row.overlap();
    const auto percent = [](double share) { return fmt::format("{:.1f} %", 100 * share); };
    return line_of({row.direction, row.shape, row.scheme_text(), time_text(row.timing.median),
                    percent(row.timing.spread()), percent(row.share_of_ideal()), time_text(row.computing),
                    time_text(row.waiting), time_text(row.messages), overlap ? percent(*overlap) : "",
                    decimal_text(static_cast<double>(row.bytes_sent), "B"), decimal_text(row.planned_bytes, "B"),
                    time_text(row.planned_seconds)},
                   shape_width, fmt::format("{} {:.0f} %", row.accuracy.nearest, 100 * row.accuracy.nearest_share));
}

} // namespace flashomp::cli
