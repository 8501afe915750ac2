// What masks of any shape keep, many pairs at once: a test of each pair would cost a lane of a vector or of a warp as
// much as its part of the products.
#pragma once

#include "algorithm/pair_mask.hpp"

#include <cstdint>

#pragma omp declare target

namespace flashomp::offload {

/// Bytes of a tile's bits.
constexpr int kept_bytes(int resident_rows, int stream_rows)
{
    return resident_rows * stream_rows / 8;
}

/// A bit for each of 8 bytes, the first in the lowest: whether it is not 0.
FLASHOMP_INLINE std::uint32_t bits_of_bytes(const std::uint8_t* bytes)
{
    static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__);
    constexpr std::uint64_t low = 0x7F7F7F7F7F7F7F7FU;
    std::uint64_t word;
    __builtin_memcpy(&word, bytes, sizeof word);
    word = ((((word & low) + low) | word) >> 7U) & 0x0101010101010101U;     // 1 in each byte that is not 0
    return static_cast<std::uint32_t>((word * 0x0102040810204080U) >> 56U); // byte k times 2^(56 - 7k) is bit 56 + k
}

/// The lowest `count` bits, at most 32.
FLASHOMP_INLINE std::uint32_t low_bits(int count)
{
    return count >= 32 ? ~0U : (1U << static_cast<unsigned>(count)) - 1U;
}

/// Bits [first, first + count) of a row of packed bits, count at most 32. Bytes without any of these are not read.
FLASHOMP_INLINE std::uint32_t bits_of_row(const std::uint8_t* row, int first, int count)
{
    std::uint64_t word = 0;
    const int last = (first + count - 1) / 8;
    for (int byte = first / 8; byte <= last; ++byte) {
        word |= std::uint64_t{row[byte]} << static_cast<unsigned>(8 * (byte - first / 8));
    }
    return static_cast<std::uint32_t>(word >> static_cast<unsigned>(first % 8)) & low_bits(count);
}

FLASHOMP_INLINE std::uint32_t kept_by_dense(const PairMask& mask, int i, int j, int count)
{
    const std::uint8_t* const row = mask.dense + i * mask.dense_query;
    if (mask.is_bits) {
        return bits_of_row(row, j, count);
    }
    std::uint32_t bits = 0;
    int n = 0;
    if (mask.dense_key == 1) {
        for (; n + 8 <= count; n += 8) {
            bits |= bits_of_bytes(row + j + n) << static_cast<unsigned>(n);
        }
    }
    for (; n < count; ++n) {
        bits |= (row[(j + n) * mask.dense_key] != 0 ? 1U : 0U) << static_cast<unsigned>(n);
    }
    return bits;
}

FLASHOMP_INLINE std::uint32_t kept_by_blocks(const PairMask& mask, int i, int j, int count)
{
    const int block_i = block_of(i, mask.block_q, mask.shift_q);
    const std::int32_t* const blocks = mask.blocks + std::int64_t{block_i} * mask.blocks_k;
    std::uint32_t bits = 0;
    for (int n = 0; n < count;) {
        const int block_j = block_of(j + n, mask.block_k, mask.shift_k);
        const int in_block = j + n - block_j * mask.block_k;
        const int left = mask.block_k - in_block;
        const int there = left < count - n ? left : count - n;
        const std::int32_t block = blocks[block_j];
        std::uint32_t kept = block == whole_block ? low_bits(there) : 0U;
        if (block >= 0) {
            const std::int64_t row = std::int64_t{block} * mask.block_q + (i - block_i * mask.block_q);
            kept = bits_of_row(mask.block_bits + row * mask.bit_bytes, in_block, there);
        }
        bits |= kept << static_cast<unsigned>(n);
        n += there;
    }
    return bits;
}

/// A bit for each of the keys [j, j + count), at most 32, the first in the lowest: whether the masks of a head keep it
/// for query i.
FLASHOMP_INLINE std::uint32_t kept_bits(const PairMask& mask, int i, int j, int count)
{
    std::uint32_t bits = low_bits(count);
    if (mask.dense != nullptr) {
        bits = kept_by_dense(mask, i, j, count);
    }
    if (mask.blocks != nullptr && bits != 0) {
        bits &= kept_by_blocks(mask, i, j, count);
    }
    return bits;
}

} // namespace flashomp::offload

#pragma omp end declare target
