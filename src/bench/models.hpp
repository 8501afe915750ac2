// Attention as models of 2024 to 2026 call it.
#pragma once

#include "shape.hpp"

#include <vector>

namespace flashomp::bench {

/// A layer of each kind that a model has, for a prompt (prefill), one more token of 16 texts (decode) and a step of
/// training. Heads, head dims, windows, softcaps and sinks are those of the models' published configurations; lengths
/// are short enough for two cores.
[[nodiscard]] std::vector<cost::Shape> models();

} // namespace flashomp::bench
