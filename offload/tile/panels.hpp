// Blocks of 16-bit rows in team memory as tensor cores want them, and the way there and back.
#pragma once

#include "tile/machine.hpp"
#include "tile/ptx.hpp"

#pragma omp declare target

namespace flashomp::offload {

/// Panels of 64 columns, 128 bytes a row (the span of all banks), in which the 16-byte chunks of a row are permuted by
/// the row: eight rows of one chunk, what ldmatrix reads, lie in different banks. Hopper's wgmma and copy engine call
/// it the 128-byte swizzle; blocks start at multiples of 1024 bytes.
template <int rows, int depth>
struct Panels {
    enum : int { chunks = depth / 8 };

    /// Byte offset of the panel that holds a chunk.
    static constexpr std::uint32_t panel(unsigned chunk) { return chunk / 8 * rows * 128; }

    /// Byte offset of chunk `chunk` of row r.
    static FLASHOMP_INLINE std::uint32_t offset(unsigned r, unsigned chunk)
    {
        return panel(chunk) + r * 128 + ((chunk % 8) ^ (r % 8)) * 16;
    }

    /// Byte offset, in the first row, of the chunk that a lane names to ldmatrix: of a pair that starts at an even
    /// chunk, the first (0) or the second (1).
    static FLASHOMP_INLINE std::uint32_t pair_offset(int even, unsigned second, unsigned lane)
    {
        const auto chunk = static_cast<unsigned>(even);
        return panel(chunk) + ((chunk % 8 * 16) ^ ((second ^ (lane % 8)) * 16));
    }
};

/// Whether rows can be read and written in 16-byte chunks.
FLASHOMP_INLINE bool in_chunks(const Rows& rows)
{
    constexpr std::uintptr_t bytes = 16;
    const auto start = reinterpret_cast<std::uintptr_t>(rows.data) + static_cast<std::uintptr_t>(2 * rows.offset);
    const auto sizes = static_cast<std::uintptr_t>(2 * rows.stride) | static_cast<std::uintptr_t>(2 * rows.depth);
    return (start | sizes) % bytes == 0;
}

/// One thread's share of copying rows to a block, with cp.async where it can.
template <int rows_in_block, int depth, int threads>
FLASHOMP_INLINE void copy_in(std::uint32_t block, const Rows& rows, unsigned thread)
{
    using Block = Panels<rows_in_block, depth>;
    constexpr int chunks = Block::chunks; // of 8 elements, 16 bytes, in a row
    constexpr int each = rows_in_block * chunks / threads;
    constexpr int apart = threads / chunks; // rows between those of one thread
    static_assert(each * threads == rows_in_block * chunks);
    const auto* const source = static_cast<const std::uint16_t*>(rows.data) + rows.offset;
    const unsigned here = ptx::here(thread);
    const unsigned chunk = here % chunks;
    const unsigned first = here / chunks;
    if (in_chunks(rows)) {
        const std::uint16_t* from = source + first * rows.stride + 8 * chunk;
        const std::int64_t step = apart * rows.stride;
        const int reach = (8 * static_cast<int>(chunk) < rows.depth ? rows.count : 0) - static_cast<int>(first);
        const std::uint32_t to = block + Block::offset(first, chunk);
        FLASHOMP_UNROLL(64)
        for (int i = 0; i < each; ++i) {
            // Rows a multiple of eight apart have their chunks in the same order.
            const std::uint32_t at = apart % 8 == 0 ? to + static_cast<std::uint32_t>(i) * apart * 128
                                                    : block + Block::offset(first + i * apart, chunk);
            ptx::copy_async_16(at, from, i * apart, reach);
            from += step;
        }
        return;
    }
    FLASHOMP_UNROLL(1)
    for (int i = 0; i < each; ++i) { // rows that no 16-byte copy can read
        const unsigned r = first + static_cast<unsigned>(i) * apart;
        FLASHOMP_UNROLL(1)
        for (unsigned x = 0; x < 8; ++x) {
            const int column = static_cast<int>(8 * chunk + x);
            const bool there = (static_cast<int>(r) < rows.count) & (column < rows.depth);
            const std::uint32_t value = there ? source[r * rows.stride + column] : 0U;
            ptx::store_shared_16(block + Block::offset(r, chunk) + 2 * x, value);
        }
    }
}

} // namespace flashomp::offload

#pragma omp end declare target
