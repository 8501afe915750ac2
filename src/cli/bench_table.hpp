// The table that `flashomp bench` prints: a line for each row, as soon as the row is there.
#pragma once

#include "run.hpp"
#include "shape.hpp"

#include <map>
#include <string>
#include <utility>
#include <vector>

namespace flashomp::cli {

/// Which columns there are and how wide they are is known before the first row.
class BenchTable {
public:
    BenchTable(const bench::RunSettings& settings, const bench::Runner& runner, const std::vector<cost::Shape>& shapes);

    [[nodiscard]] std::string heading() const;

    /// The rows of flashomp come before those of standard attention, which say how many times as long they took.
    [[nodiscard]] std::string line(const bench::Row& row);

private:
    /// Title and width; the line ends with a last column for failures, which has neither.
    using Column = std::pair<std::string, std::size_t>;

    [[nodiscard]] std::string joined(std::vector<std::string> cells) const;

    std::vector<Column> columns_;
    bool has_kernels_, has_ratio_, has_rms_, has_queue_, has_model_, has_copy_;
    std::map<std::string, double> seconds_; ///< of flashomp, by the name of the row
};

} // namespace flashomp::cli
