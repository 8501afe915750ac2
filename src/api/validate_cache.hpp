#pragma once

#include "problem.hpp"

#include <array>
#include <cstdint>

namespace flashomp {

/// Checks, of a problem whose k and v are a cache and whose batch is known, which of the cache's options go together,
/// and sets seqlen_k: the most keys that a sequence could have. Reads no table.
void check_cache(Problem& problem);

/// Checks the values of the tables of a valid problem, which are those of one run. Nothing happens without a cache.
void check_cache_values(const Problem& problem);

/// The scales of a cache of 8 bits as far as they are in host memory. A table may name a page for every key, so that
/// a check of a page must take no longer than its loads.
class CacheScales {
public:
    explicit CacheScales(const Problem& problem);

    /// Checks those that are for all pages, or sequences.
    void check_common() const { check(1, 0); }
    /// Checks those of a page, or of a sequence of a cache without pages.
    void check_page(std::int64_t page) const { check(2, page); }
    [[nodiscard]] bool are_of_pages() const { return scales_[0].rank == 2 || scales_[1].rank == 2; }
    /// Asks for those of a page that is checked soon.
    void ask_for(std::int64_t page) const;

private:
    struct Scale {
        const char* name;
        const float* data; ///< [heads], or [pages][heads]
        std::int64_t heads, stride;
        int rank; ///< 0: not there
    };

    void check(int rank, std::int64_t page) const;

    const char* page_word_; ///< what the first axis of scales counts
    std::array<Scale, 2> scales_;
};

} // namespace flashomp
