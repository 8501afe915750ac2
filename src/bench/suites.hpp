// Named lists of shapes.
#pragma once

#include "shape.hpp"

#include <string>
#include <string_view>
#include <vector>

namespace flashomp::bench {

struct Suite {
    std::string_view name;
    std::string_view what;        ///< for --help
    bool beside_standard = false; ///< standard attention is timed too
    std::vector<cost::Shape> shapes;
};

/// fa2, repro, decode, cache, varlen, models and quick.
[[nodiscard]] const std::vector<Suite>& suites();

/// Throws Error for a name that is none.
[[nodiscard]] const Suite& find_suite(const std::string& name);

} // namespace flashomp::bench
