#include "bench_table.hpp"

#include "report.hpp"

#include <algorithm>
#include <cstddef>

#include <fmt/format.h>

namespace flashomp::cli {

BenchTable::BenchTable(const bench::RunSettings& settings, const bench::Runner& runner,
                       const std::vector<cost::Shape>& shapes)
    : has_kernels_(settings.kernel_time), has_ratio_(settings.beside_standard && runner.has_standard()),
      has_rms_(settings.dtype == DType::float8_e4m3), has_queue_(runner.on_device() && runner.has_standard()),
      has_model_(
          std::any_of(shapes.begin(), shapes.end(), [](const cost::Shape& shape) { return !shape.model.empty(); })),
      has_copy_(!runner.on_device() &&
                std::any_of(shapes.begin(), shapes.end(), [](const cost::Shape& shape) { return shape.seqlen_q == 1; }))
{
    std::size_t longest = std::string("shape").size();
    std::size_t longest_model = 0;
    for (const cost::Shape& shape : shapes) {
        longest = std::max(longest, shape.name().size());
        longest_model = std::max(longest_model, shape.model.size());
    }
    constexpr std::size_t implementation = 28; // "openmp:host-avx512 (tuned)", "standard:..."
    const auto add = [&](bool is_there, const char* title, std::size_t width) {
        if (is_there) {
            columns_.emplace_back(title, std::max(width, std::string(title).size()));
        }
    };
    add(has_model_, "model", longest_model);
    add(true, "pass", 8);
    add(true, "shape", longest);
    add(true, "implementation", implementation);
    add(true, "median", 9);
    add(has_kernels_, "kernels", 9);
    add(has_ratio_, "time / flashomp's", 7);
    add(true, "spread", 7);
    add(true, "speed", 13);
    add(true, "of the bound", 7);
    add(true, "peak memory", 11);
    add(true, "nearest to its bound", 30);
    add(has_rms_, "rms to float32 inputs", 7);
    add(has_queue_, "queued in", 9);
    add(has_copy_, "of a copy's bandwidth", 7);
}

std::string BenchTable::heading() const
{
    std::vector<std::string> titles;
    for (const auto& [title, width] : columns_) {
        titles.push_back(title);
    }
    return joined(titles);
}

std::string BenchTable::line(const bench::Row& row)
{
    const bool is_timed = row.failure.empty();
    const auto if_timed = [&](const std::string& text) { return is_timed ? text : std::string(); };
    std::string ratio;
    if (is_timed && row.implementation == "flashomp") {
        seconds_[row.name()] = row.timing.median;
    } else if (const auto ours = seconds_.find(row.name()); is_timed && ours != seconds_.end() && ours->second > 0) {
        ratio = fmt::format("{:.2f}x", row.timing.median / ours->second);
    }
    std::vector<std::string> cells;
    const auto add = [&](bool is_there, const std::string& cell) {
        if (is_there) {
            cells.push_back(cell);
        }
    };
    add(has_model_, row.model);
    add(true, row.direction);
    add(true, row.shape);
    add(true, row.machine.empty() ? row.backend : row.backend + ":" + row.machine + (row.tuned ? " (tuned)" : ""));
    add(true, if_timed(time_text(row.timing.median)));
    add(has_kernels_, row.kernel_seconds ? time_text(*row.kernel_seconds) : "");
    add(has_ratio_, ratio);
    add(true, if_timed(fmt::format("{:.1f} %", 100.0 * row.timing.spread())));
    add(true, if_timed(decimal_text(row.flops_per_second(), "FLOP/s")));
    const std::optional<double> bound = row.bound_share();
    add(true, bound ? if_timed(fmt::format("{:.0f} %", 100.0 * *bound)) : "");
    add(true, row.peak_bytes ? bytes_text(*row.peak_bytes) : if_timed("unknown"));
    add(true, if_timed(fmt::format("{} {:.0f} %", row.accuracy.nearest, 100.0 * row.accuracy.nearest_share)));
    add(has_rms_, row.accuracy.unrounded_rms ? fmt::format("{:.1f} %", 100.0 * *row.accuracy.unrounded_rms) : "");
    add(has_queue_, row.queue_seconds ? time_text(*row.queue_seconds) : "");
    const std::optional<double> share = row.bandwidth_share();
    add(has_copy_, share ? if_timed(fmt::format("{:.2f}", *share)) : "");
    cells.push_back(row.failure);
    return joined(std::move(cells));
}

std::string BenchTable::joined(std::vector<std::string> cells) const
{
    std::string text;
    for (std::size_t i = 0; i < cells.size(); ++i) {
        text += fmt::format("{:<{}}  ", cells[i], i < columns_.size() ? columns_[i].second : 0);
    }
    text.erase(text.find_last_not_of(' ') + 1);
    return text + "\n";
}

} // namespace flashomp::cli
