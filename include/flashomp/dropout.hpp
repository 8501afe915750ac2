// The dropout mask, as a pure function of (seed, offset, batch, query head, i, j). Header-only, constexpr and free of
// the standard library's containers, so that the host, the OpenMP device compiler and any caller draw the same bits.
#pragma once

#include <cstdint>

#ifdef _OPENMP
#pragma omp declare target
#endif

namespace flashomp {

/// Four 32-bit words: the counter, and the result, of one Philox call.
struct PhiloxBlock {
    std::uint32_t word[4];
};

/// The 64-bit key of one Philox stream.
struct PhiloxKey {
    std::uint32_t word[2];
};

inline constexpr int philox_rounds = 10;
inline constexpr std::uint32_t philox_multiplier_0 = 0xD2511F53U;
inline constexpr std::uint32_t philox_multiplier_1 = 0xCD9E8D57U;
inline constexpr std::uint32_t philox_weyl_0 = 0x9E3779B9U; ///< golden ratio
inline constexpr std::uint32_t philox_weyl_1 = 0xBB67AE85U; ///< sqrt(3) - 1

/// Philox4x32-10: ten rounds of a keyed bijection on 128 bits (Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as
/// easy as 1, 2, 3", SC 2011). For one key, different counters give different blocks.
[[nodiscard]] constexpr PhiloxBlock philox4x32_10(PhiloxBlock counter, PhiloxKey key)
{
    std::uint32_t c0 = counter.word[0];
    std::uint32_t c1 = counter.word[1];
    std::uint32_t c2 = counter.word[2];
    std::uint32_t c3 = counter.word[3];
    std::uint32_t k0 = key.word[0];
    std::uint32_t k1 = key.word[1];
    for (int round = 0; round < philox_rounds; ++round) {
        const std::uint64_t product_0 = std::uint64_t{philox_multiplier_0} * c0;
        const std::uint64_t product_1 = std::uint64_t{philox_multiplier_1} * c2;
        c0 = static_cast<std::uint32_t>(product_1 >> 32U) ^ c1 ^ k0;
        c1 = static_cast<std::uint32_t>(product_1);
        c2 = static_cast<std::uint32_t>(product_0 >> 32U) ^ c3 ^ k1;
        c3 = static_cast<std::uint32_t>(product_0);
        k0 += philox_weyl_0;
        k1 += philox_weyl_1;
    }
    return {{c0, c1, c2, c3}};
}

/// The key of one call's mask. seed (64 bits) keys a Philox call on the counter {offset low, offset high, 0, 0}, and
/// the first two words of its result are the key. All 128 bits of (seed, offset) take part, and the counter of the mask
/// stays free for the position alone. Compute it once a call, on the host.
[[nodiscard]] constexpr PhiloxKey dropout_key(std::uint64_t seed, std::uint64_t offset)
{
    const PhiloxBlock counter{{static_cast<std::uint32_t>(offset), static_cast<std::uint32_t>(offset >> 32U), 0, 0}};
    const PhiloxKey key{{static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32U)}};
    const PhiloxBlock block = philox4x32_10(counter, key);
    return {{block.word[0], block.word[1]}};
}

/// The draws of the four neighbours j = 4·quad … 4·quad + 3 of row i: word j mod 4 of
/// philox4x32_10({quad, i, head, batch}, key). Every (batch, head, i, j) below 2^32 thus has a word of its own.
/// With packed sequences batch is the sequence's index and i and j count from its start.
[[nodiscard]] constexpr PhiloxBlock dropout_draws(PhiloxKey key, std::uint32_t batch, std::uint32_t head,
                                                  std::uint32_t i, std::uint32_t quad)
{
    return philox4x32_10({{quad, i, head, batch}}, key);
}

/// Draws below this many 2^32nds are dropped: probability·2^32, rounded; 0 when nothing is dropped.
[[nodiscard]] constexpr std::uint32_t dropout_threshold(double probability)
{
    const double scaled = probability * 4294967296.0 + 0.5;
    return scaled < 4294967295.0 ? static_cast<std::uint32_t>(scaled) : 4294967295U;
}

/// Whether the probability at (batch, head, i, j) is kept, for a key from dropout_key(). Kernels that visit four
/// neighbours at once call dropout_draws() and compare each word with the threshold.
[[nodiscard]] constexpr bool dropout_keep(PhiloxKey key, std::uint32_t batch, std::uint32_t head, std::uint32_t i,
                                          std::uint32_t j, std::uint32_t threshold)
{
    // Selects, not an index: an indexed array cannot live in a GPU's registers.
    const PhiloxBlock draws = dropout_draws(key, batch, head, i, j / 4U);
    const std::uint32_t low = (j & 1U) == 0 ? draws.word[0] : draws.word[1];
    const std::uint32_t high = (j & 1U) == 0 ? draws.word[2] : draws.word[3];
    return ((j & 2U) == 0 ? low : high) >= threshold;
}

/// The definition of the mask in one line; see dropout_key() and dropout_draws() for how the arguments map.
[[nodiscard]] constexpr bool dropout_keep(std::uint64_t seed, std::uint64_t offset, std::uint32_t batch,
                                          std::uint32_t head, std::uint32_t i, std::uint32_t j, std::uint32_t threshold)
{
    return dropout_keep(dropout_key(seed, offset), batch, head, i, j, threshold);
}

} // namespace flashomp

#ifdef _OPENMP
#pragma omp end declare target
#endif
