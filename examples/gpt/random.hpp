// Random numbers by counter: the same (seed, stream, index) gives the same number, whatever was drawn before. A run
// that is resumed needs no state but its step.
#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>

namespace gpt {

/// What numbers are drawn for: streams do not repeat each other.
enum class Stream : std::uint64_t { weights = 1, batches = 2, sampling = 3 };

/// SplitMix64's next number (Steele et al. 2014): every bit of x changes about half of them.
[[nodiscard]] constexpr std::uint64_t mix(std::uint64_t x)
{
    x += 0x9E3779B97F4A7C15U;
    x = (x ^ (x >> 30U)) * 0xBF58476D1CE4E5B9U;
    x = (x ^ (x >> 27U)) * 0x94D049BB133111EBU;
    return x ^ (x >> 31U);
}

/// 64 random bits.
[[nodiscard]] constexpr std::uint64_t random_bits(std::uint64_t seed, Stream stream, std::uint64_t index)
{
    return mix(mix(mix(seed) ^ static_cast<std::uint64_t>(stream)) ^ index);
}

/// In [0, 1).
[[nodiscard]] constexpr double random_uniform(std::uint64_t seed, Stream stream, std::uint64_t index)
{
    return static_cast<double>(random_bits(seed, stream, index) >> 11U) * 0x1p-53;
}

/// Normal, by Box and Muller (1958).
[[nodiscard]] inline double random_normal(std::uint64_t seed, Stream stream, std::uint64_t index)
{
    const double radius = std::sqrt(-2 * std::log(1 - random_uniform(seed, stream, 2 * index)));
    return radius * std::cos(2 * std::numbers::pi * random_uniform(seed, stream, 2 * index + 1));
}

} // namespace gpt
