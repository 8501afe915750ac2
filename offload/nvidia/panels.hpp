// Blocks of rows in team memory as tensor cores want them, and the way there.
#pragma once

#include "algorithm/machine.hpp"
#include "algorithm/page_source.hpp"
#include "nvidia/ptx.hpp"

#pragma omp declare target

namespace flashomp::offload {

/// 16-bit elements in panels of 64 columns, 128 bytes a row (the span of all banks), in which the 16-byte chunks of a
/// row are permuted by the row: eight rows of one chunk, what ldmatrix reads, lie in different banks. Hopper's wgmma
/// and copy engine call it the 128-byte swizzle; blocks start at multiples of 1024 bytes.
template <int rows_, int depth>
struct Panels {
    using Stored = std::uint16_t; ///< an element's bits
    enum : int { rows = rows_, element_bytes = 2, chunks = depth / 8, row_bytes = 128, bytes = 2 * rows * depth };

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

/// float32 rows, one after the other, in which the 16-byte chunks are permuted by the row so that two ways of reading
/// them meet no bank twice: four neighbouring chunks of neighbouring rows (multiply), and two neighbouring chunks of
/// every other row of eight (accumulate).
template <int rows_, int depth>
struct FloatRows {
    using Stored = std::uint32_t;
    enum : int { rows = rows_, element_bytes = 4, chunks = depth / 4, row_bytes = 4 * depth, bytes = rows * row_bytes };

    /// What the number of a chunk of row r is xor-ed with.
    static constexpr std::uint32_t turn(unsigned r) { return (r % 8 / 2 * 2) ^ (r % 2 * 4); }

    /// Byte offset of chunk `chunk` of row r.
    static FLASHOMP_INLINE std::uint32_t offset(unsigned r, unsigned chunk)
    {
        return r * row_bytes + (chunk ^ turn(r)) * 16;
    }
};

/// Whether rows can be read and written in 16-byte chunks.
template <int element_bytes>
FLASHOMP_INLINE bool in_chunks(const Rows& rows)
{
    const auto bytes_of = [](std::int64_t elements) { return static_cast<std::uintptr_t>(element_bytes * elements); };
    const auto start = reinterpret_cast<std::uintptr_t>(rows.data) + bytes_of(rows.offset);
    return (start | bytes_of(rows.stride) | bytes_of(rows.depth)) % 16 == 0;
}

/// The same of rows in pages, wherever each page is.
template <int element_bytes>
FLASHOMP_INLINE bool in_chunks(const PagedRows& rows)
{
    return in_chunks<element_bytes>(rows.page0) &&
           static_cast<std::uintptr_t>(element_bytes * rows.page_stride) % 16 == 0;
}

/// copy_in() of one chunk that no 16-byte copy can read, of row r, which begins at `row`.
template <class Block>
FLASHOMP_INLINE void copy_elements(std::uint32_t block, unsigned r, unsigned chunk, const typename Block::Stored* row,
                                   bool is_row, int depth)
{
    constexpr int size = Block::element_bytes;
    FLASHOMP_UNROLL(1)
    for (unsigned x = 0; x < 16 / size; ++x) {
        const int column = static_cast<int>(16 / size * chunk + x);
        const bool there = is_row & (column < depth);
        const std::uint32_t at = block + Block::offset(r, chunk) + size * x;
        if constexpr (size == 4) {
            ptx::copy_async_4(at, row + column, there ? 4 : 0);
        } else {
            ptx::store_shared_16(at, there ? row[column] : 0U);
        }
    }
}

/// copy_in() where the threads are not whole rows of chunks: they take the chunks as they come.
template <class Block, int threads>
FLASHOMP_INLINE void copy_in_chunks(std::uint32_t block, const Rows& rows, unsigned thread)
{
    constexpr int in_chunk = 16 / Block::element_bytes;
    constexpr unsigned chunks = Block::chunks;
    constexpr int each = Block::rows * Block::chunks / threads;
    static_assert(each * threads == Block::rows * Block::chunks);
    using Stored = typename Block::Stored;
    const Stored* const source = static_cast<const Stored*>(rows.data) + rows.offset;
    const bool whole = in_chunks<Block::element_bytes>(rows);
    const unsigned here = ptx::here(thread);
    FLASHOMP_UNROLL(3)
    for (int i = 0; i < each; ++i) {
        const unsigned number = here + static_cast<unsigned>(i) * threads;
        const unsigned r = number / chunks;
        const unsigned chunk = number - r * chunks;
        if (whole) {
            const int reach = in_chunk * static_cast<int>(chunk) < rows.depth ? rows.count : 0;
            const Stored* const from = source + static_cast<std::int64_t>(r) * rows.stride + in_chunk * chunk;
            ptx::copy_async_16(block + Block::offset(r, chunk), from, static_cast<int>(r), reach);
        } else {
            copy_elements<Block>(block, r, chunk, source + static_cast<std::int64_t>(r) * rows.stride,
                                 static_cast<int>(r) < rows.count, rows.depth);
        }
    }
}

/// copy_in() where they are: each thread has one column of chunks.
template <class Block, int threads>
FLASHOMP_INLINE void copy_in_columns(std::uint32_t block, const Rows& rows, unsigned thread)
{
    constexpr int size = Block::element_bytes;
    constexpr int in_chunk = 16 / size;
    constexpr int chunks = Block::chunks; // in a row
    constexpr int each = Block::rows * chunks / threads;
    constexpr int apart = threads / chunks; // rows between those of one thread
    static_assert(each * threads == Block::rows * chunks);
    using Stored = typename Block::Stored;
    const Stored* const source = static_cast<const Stored*>(rows.data) + rows.offset;
    const unsigned here = ptx::here(thread);
    const unsigned chunk = here % chunks;
    const unsigned first = here / chunks;
    if (in_chunks<size>(rows)) {
        const Stored* from = source + first * rows.stride + in_chunk * chunk;
        const std::int64_t step = apart * rows.stride;
        const int reach = (in_chunk * static_cast<int>(chunk) < rows.depth ? rows.count : 0) - static_cast<int>(first);
        const std::uint32_t to = block + Block::offset(first, chunk);
        FLASHOMP_UNROLL(64)
        for (int i = 0; i < each; ++i) {
            // Rows a multiple of eight apart have their chunks in the same order.
            const std::uint32_t at = apart % 8 == 0 ? to + static_cast<std::uint32_t>(i) * apart * Block::row_bytes
                                                    : block + Block::offset(first + i * apart, chunk);
            ptx::copy_async_16(at, from, i * apart, reach);
            from += step;
        }
        return;
    }
    FLASHOMP_UNROLL(1)
    for (int i = 0; i < each; ++i) { // rows that no 16-byte copy can read
        const unsigned r = first + static_cast<unsigned>(i) * apart;
        copy_elements<Block>(block, r, chunk, source + r * rows.stride, static_cast<int>(r) < rows.count, rows.depth);
    }
}

/// One thread's share of copying rows to a block, with cp.async where it can.
template <class Block, int threads>
FLASHOMP_INLINE void copy_in(std::uint32_t block, const Rows& rows, unsigned thread)
{
    if constexpr (threads % Block::chunks == 0) {
        copy_in_columns<Block, threads>(block, rows, thread);
    } else {
        copy_in_chunks<Block, threads>(block, rows, thread);
    }
}

/// Rows in pages that the lanes of a warp look up at one time, a lane each: as many as there are lanes, but whole
/// rounds of all threads over the chunks.
template <class Block, int threads>
constexpr int rows_looked_up()
{
    int rows = Block::rows < 32 ? int{Block::rows} : 32;
    while (Block::rows % rows != 0 || rows * Block::chunks % threads != 0) {
        --rows;
    }
    return rows;
}

/// The same of rows in pages. A page's number is read from memory, after a division: a thread that did so for each of
/// its chunks would wait as often.
template <class Block, int threads>
FLASHOMP_INLINE void copy_in(std::uint32_t block, const PagedRows& rows, unsigned thread)
{
    constexpr int size = Block::element_bytes;
    constexpr int in_chunk = 16 / size;
    constexpr unsigned chunks = Block::chunks; // in a row
    constexpr int at_once = rows_looked_up<Block, threads>();
    constexpr int each = at_once * Block::chunks / threads;
    using Stored = typename Block::Stored;
    const Stored* const source = static_cast<const Stored*>(rows.page0.data);
    const unsigned here = ptx::here(thread);
    const int last = rows.count - 1;
    const bool whole = in_chunks<size>(rows);
    FLASHOMP_UNROLL(1)
    for (int first = 0; first < Block::rows; first += at_once) {
        // Nobody looks up a page for rows that are not there: their address is the last row's, of which nothing is
        // read.
        const int own = first + static_cast<int>(here % 32);
        const std::int64_t offset = rows.offset_of(own < last ? own : last);
        const auto copy = [&](int i) FLASHOMP_LAMBDA {
            const unsigned number = here + static_cast<unsigned>(i) * threads;
            const unsigned r = number / chunks;
            const unsigned chunk = number - r * chunks;
            const Stored* const row = source + ptx::shuffle(offset, r);
            const bool is_row = first + static_cast<int>(r) <= last;
            const bool is_column = in_chunk * static_cast<int>(chunk) < rows.page0.depth;
            const unsigned place = static_cast<unsigned>(first) + r;
            if (whole) {
                ptx::copy_async_16(block + Block::offset(place, chunk), row + in_chunk * chunk, 0,
                                   is_row & is_column ? 1 : 0);
            } else {
                copy_elements<Block>(block, place, chunk, row, is_row, rows.page0.depth);
            }
        };
        if (whole) {
            FLASHOMP_UNROLL(8)
            for (int i = 0; i < each; ++i) {
                copy(i);
            }
        } else {
            FLASHOMP_UNROLL(1)
            for (int i = 0; i < each; ++i) {
                copy(i);
            }
        }
    }
}

} // namespace flashomp::offload

#pragma omp end declare target
