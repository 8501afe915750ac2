// Small random changes of an input, the same for the same seed.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

namespace flashomp::fuzz {

using Bytes = std::vector<std::uint8_t>;

/// One to eight changes of an input of `corpus`: bits, bytes, numbers in decimal and in binary, runs left out,
/// repeated, moved in from another input. The result has at most 64 KiB more than the input.
[[nodiscard]] Bytes mutated(const std::vector<Bytes>& corpus, std::mt19937_64& random);

} // namespace flashomp::fuzz
