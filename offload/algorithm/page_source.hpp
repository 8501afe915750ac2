// Pages as the second key source: keys and values in a cache [page, row, head, depth] whose block table says which
// pages a sequence has. A contiguous cache whose sequences are chosen by an index is one of pages, too, each as long as
// a sequence may be.
#pragma once

#include "algorithm/params.hpp"

#pragma omp declare target

namespace flashomp::offload {

/// Keys, or values, of one key head of one sequence. Rows up to `count` are there; nobody looks up a page for others.
struct PagedRows {
    Rows page0;                            ///< row 0 of page 0, for this head; count is of no account
    const std::int32_t* numbers = nullptr; ///< of the sequence's pages
    std::int64_t page_stride = 0;          ///< elements from one page to the next
    int page_rows = 1;
    int first = 0; ///< row of the sequence at which these begin
    int count = 0; ///< valid rows; the rest of a block reads as zero
    int last = 0;  ///< rows of the sequence that may be loaded, counted from its first

    /// Elements from page0.data to row r of these.
    FLASHOMP_INLINE std::int64_t offset_of(int r) const
    {
        const int row = first + r;
        const int page = row / page_rows;
        return page0.offset + numbers[page] * page_stride + (row - page * page_rows) * page0.stride;
    }

    /// Row r alone.
    FLASHOMP_INLINE Rows row(int r) const
    {
        Rows one = page0;
        one.offset = offset_of(r);
        one.count = 1;
        return one;
    }

    /// From row r on, those that lie in the same page, at most `most`.
    FLASHOMP_INLINE Rows run(int r, int most) const
    {
        Rows rows = row(r);
        const int left = page_rows - (first + r) % page_rows;
        const int there = left < count - r ? left : count - r;
        rows.count = there < most ? there : most;
        return rows;
    }

    /// Rows after which come those from row r on that lie in one page with it, as far as the sequence goes and at most
    /// as many as these: where they would lie, were the memory one tensor. Without elements where the sequence ends.
    FLASHOMP_INLINE Rows before_next(int r) const
    {
        Rows rows = page0;
        rows.count = 0;
        if (first + r < last) {
            rows.offset = offset_of(r);
            const int in_page = page_rows - (first + r) % page_rows;
            const int left = last - first - r < in_page ? last - first - r : in_page;
            rows.count = left < count ? left : count;
            rows.offset -= rows.count * rows.stride;
        }
        return rows;
    }
};

/// At most `most` of the rows, from row `first` on.
FLASHOMP_INLINE PagedRows slice(PagedRows rows, int first, int most)
{
    rows.first += first;
    rows.count = rows.count - first < most ? rows.count - first : most;
    return rows;
}

/// Goes along rows without a division for each, and stays at the last one of the sequence.
class PageWalk {
public:
    /// Begins at row r of these.
    FLASHOMP_INLINE PageWalk(const PagedRows& rows, int r) : rows_(rows), left_(rows.last - rows.first - r)
    {
        if (left_ > 0) {
            const int page = (rows.first + r) / rows.page_rows;
            page_ = rows.numbers + page;
            row_ = rows.first + r - page * rows.page_rows;
            offset_ = rows.offset_of(r);
        }
    }

    [[nodiscard]] FLASHOMP_INLINE bool is_over() const { return left_ <= 0; }
    [[nodiscard]] FLASHOMP_INLINE std::int64_t offset() const { return offset_; }
    /// Number of the row's page.
    [[nodiscard]] FLASHOMP_INLINE std::int64_t page() const { return *page_; }

    FLASHOMP_INLINE void next()
    {
        if (--left_ <= 0) {
            return;
        }
        if (++row_ == rows_.page_rows) {
            row_ = 0;
            offset_ = rows_.page0.offset + *++page_ * rows_.page_stride;
        } else {
            offset_ += rows_.page0.stride;
        }
    }

private:
    const PagedRows& rows_;
    const std::int32_t* page_ = nullptr;
    std::int64_t offset_ = 0;
    int row_ = 0, left_;
};

/// Keys and values in the pages of Params::cache. A cache without pages is one of a page for each sequence.
struct PagedKeys {
    static FLASHOMP_INLINE Sequence of(const Params& p, int batch) { return sequence_in_cache(p, batch); }
    static FLASHOMP_INLINE PagedRows keys(const Params& p, const Sequence& seq, int batch, int head_kv, int first,
                                          int count)
    {
        return rows_in_pages(p, p.k, batch, head_kv, static_cast<int>(seq.k_start) + first, count, p.head_dim);
    }
    static FLASHOMP_INLINE PagedRows values(const Params& p, const Sequence& seq, int batch, int head_kv, int first,
                                            int count)
    {
        return rows_in_pages(p, p.v, batch, head_kv, static_cast<int>(seq.k_start) + first, count, p.head_dim_v);
    }

private:
    static FLASHOMP_INLINE PagedRows rows_in_pages(const Params& p, const Tensor& cache, int batch, int head_kv,
                                                   int first, int count, int depth)
    {
        const CacheTables& tables = p.cache;
        if (tables.pages == nullptr) { // page 0, whatever number is looked up for it
            return {rows_of(p, cache, batch, head_kv, 0, 0, depth),
                    tables.lengths,
                    0,
                    p.seqlen_k,
                    first,
                    count,
                    first + count};
        }
        const std::int64_t start = tables.starts != nullptr ? tables.starts[batch] : batch * tables.stride;
        return {rows_of(p, cache, 0, head_kv, 0, 0, depth),
                tables.pages + start,
                cache.batch,
                tables.page_rows,
                first,
                count,
                first + count};
    }
};

} // namespace flashomp::offload

#pragma omp end declare target
