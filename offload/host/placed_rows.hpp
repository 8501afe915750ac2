// A block of keys, or values, that a host machine reads where they are, and asks for before it comes to them.
#pragma once

#include "algorithm/quantised_source.hpp"

namespace flashomp::offload {

/// The places of a block's rows: elements from the tensor's base to each, so that rows at one stride and rows in pages
/// are read by the same code. Each row is one of `heads` heads, which lie a fixed distance apart.
///
/// The rows of the block after it are asked for while this one is at work, in the order of memory, all heads of a row
/// and then the next row. They go into the core's second cache: at a stride of a power of two they would meet in few
/// sets of the first one, and push each other out.
class PlacedRows {
public:
    enum : int { step = 16, line_bytes = 64 };

    static constexpr int whole_steps(int rows) { return (rows + step - 1) / step * step; }

    /// Floats of memory for blocks of so many rows.
    static constexpr std::int64_t floats(int rows) { return std::int64_t{3} * 2 * whole_steps(rows); }

    PlacedRows(float* memory, std::ptrdiff_t head_stride, int heads)
        : places_(reinterpret_cast<std::int64_t*>(memory)), head_stride_(head_stride), heads_(heads)
    {
    }

    /// A machine has one stage.
    template <class Stage>
    FLASHOMP_INLINE PlacedRows& operator[](Stage)
    {
        return *this;
    }

    [[nodiscard]] FLASHOMP_INLINE int count() const { return count_; }
    /// Of the tensor: its base and element type, and the depth.
    [[nodiscard]] FLASHOMP_INLINE const Rows& tensor() const { return tensor_; }

    /// Row c of a head, up to a multiple of `step`; those past the last one are the last one again.
    template <class T>
    [[nodiscard]] FLASHOMP_INLINE const T* row(const T* base, int head, int c) const
    {
        return base + (places_[c] + head * head_stride_);
    }

    /// The element type of a cache of 8 bits, and whether its elements have factors other than 1.
    [[nodiscard]] FLASHOMP_INLINE CacheElement element() const { return element_; }
    [[nodiscard]] FLASHOMP_INLINE bool has_scales() const { return scales_ != nullptr; }

    /// The factors of rows [c, c + step) of a head.
    FLASHOMP_INLINE void scales(int head, int c, float (&by)[step]) const
    {
        const std::int64_t* const at = places_ + 2 * whole_steps(count_) + c;
        for (int i = 0; i < step; ++i) {
            by[i] = scales_[at[i] + head];
        }
    }

    void take(const QuantisedRows& rows)
    {
        take(rows.rows);
        element_ = rows.element;
        scales_ = rows.scales;
        if (scales_ == nullptr) {
            return;
        }
        std::int64_t* const at = places_ + 2 * whole_steps(count_);
        PageWalk walk(rows.rows, 0);
        for (int c = 0; c < count_; ++c, walk.next()) {
            at[c] = rows.scale_stride == 0 ? 0 : walk.page() * rows.scale_stride;
        }
        for (int c = count_; c < whole_steps(count_); ++c) {
            at[c] = at[count_ - 1];
        }
    }

    /// StreamedRows: Rows, or PagedRows of a cache.
    template <class StreamedRows>
    void take(const StreamedRows& rows)
    {
        tensor_ = base_of(rows);
        count_ = rows.count;
        find(rows);
        for (int c = count_; c < whole_steps(count_); ++c) {
            places_[c] = places_[count_ - 1];
        }
        asked_ = asked_head_ = 0;
    }

    /// The first block that is taken: nobody has asked for it.
    [[nodiscard]] FLASHOMP_INLINE bool is_first()
    {
        const bool first = is_first_;
        is_first_ = false;
        return first;
    }

    /// Asks for all rows of this block.
    template <class T>
    void ask_here(const T* base) const
    {
        for (int c = 0; c < count_; ++c) {
            for (int head = 0; head < heads_; ++head) {
                prefetch(row(base, head, c));
            }
        }
    }

    /// Asks for so many rows more of the next one, each of one head.
    template <class T>
    FLASHOMP_INLINE void ask(const T* base, int rows)
    {
        for (; rows > 0 && asked_ < next_; --rows) {
            prefetch(base + (places_[whole_steps(count_) + asked_] + asked_head_ * head_stride_));
            if (++asked_head_ == heads_) {
                asked_head_ = 0;
                ++asked_;
            }
        }
    }

private:
    static FLASHOMP_INLINE const Rows& base_of(const Rows& rows) { return rows; }
    static FLASHOMP_INLINE const Rows& base_of(const PagedRows& rows) { return rows.page0; }

    FLASHOMP_INLINE void find(const Rows& rows)
    {
        std::int64_t* const next = places_ + whole_steps(count_);
        for (int c = 0; c < count_; ++c) {
            places_[c] = rows.offset + c * rows.stride;
            next[c] = places_[c] + count_ * rows.stride; // harmless past the end: a prefetch does not fault
        }
        next_ = count_;
    }
    FLASHOMP_INLINE void find(const PagedRows& rows)
    {
        std::int64_t* const next = places_ + whole_steps(count_);
        PageWalk walk(rows, 0);
        for (int c = 0; c < count_; ++c, walk.next()) {
            places_[c] = walk.offset();
        }
        for (next_ = 0; next_ < count_ && !walk.is_over(); ++next_, walk.next()) {
            next[next_] = walk.offset();
        }
    }

    template <class T>
    FLASHOMP_INLINE void prefetch(const T* row) const
    {
        for (int x = 0; x < tensor_.depth; x += line_bytes / static_cast<int>(sizeof(T))) {
            __builtin_prefetch(row + x, 0, 2);
        }
    }

    std::int64_t* places_; ///< of the rows of a block, then those of the next one, then of the block's scales
    std::ptrdiff_t head_stride_;
    int heads_;
    Rows tensor_;
    int count_ = 0, next_ = 0;       ///< rows that are there
    int asked_ = 0, asked_head_ = 0; ///< the next one to ask for
    bool is_first_ = true;
    CacheElement element_ = CacheElement::as_q;
    const float* scales_ = nullptr;
};

} // namespace flashomp::offload
