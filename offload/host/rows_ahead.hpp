// The rows that a host machine streams next, asked for while it computes: into the core's own cache, a few lines with
// each of its products. A copy of rows that nobody asked for waits for the shared cache or for memory.
#pragma once

#include "algorithm/element.hpp"

namespace flashomp::offload {

class RowsAhead {
public:
    enum : int { line_bytes = 64 };

    /// Rows were taken, and as many after them will be.
    FLASHOMP_INLINE void follow(const Rows& rows)
    {
        const int size = rows.element == Element::float32 ? 4 : 2;
        Block& block = blocks_[last_];
        last_ = (last_ + 1) % streams;
        block.row = static_cast<const char*>(rows.data) + (rows.offset + rows.count * rows.stride) * size;
        block.stride = rows.stride * size;
        block.lines = (rows.depth * size + line_bytes - 1) / line_bytes;
        block.rows = rows.count;
        block.line = 0;
    }

    /// Asks for so many lines more.
    FLASHOMP_INLINE void ask(int lines)
    {
        for (Block& block : blocks_) {
            for (; lines > 0 && block.rows > 0; --lines) {
                __builtin_prefetch(block.row + block.line * line_bytes, 0, 2); // harmless past the end
                if (++block.line == block.lines) {
                    block.line = 0;
                    block.row += block.stride;
                    --block.rows;
                }
            }
        }
    }

private:
    enum : int { streams = 2 }; // that every pass has

    struct Block {
        const char* row = nullptr;
        std::ptrdiff_t stride = 0;
        int rows = 0, lines = 0, line = 0;
    };
    Block blocks_[streams];
    int last_ = 0;
};

} // namespace flashomp::offload
