// Where the keys of a problem's sequences lie in its key/value cache, read from the tables of its options.
#pragma once

#include "problem.hpp"

#include <cstdint>

namespace flashomp {

/// The cache of a problem whose shape is known; the problem has to outlive this. A contiguous cache is one of pages,
/// too: each has the Nk rows of one sequence.
class KeyCache {
public:
    explicit KeyCache(const Problem& problem) : problem_(problem) {}

    /// Rows of a page.
    [[nodiscard]] std::int64_t page_rows() const { return problem_.k.shape[1]; }

    /// Pages that the table has for sequence b.
    [[nodiscard]] std::int64_t pages_of(std::int64_t b) const;

    /// The number of its nth page.
    [[nodiscard]] std::int64_t page(std::int64_t b, std::int64_t n) const;

    /// Its keys.
    [[nodiscard]] std::int64_t length(std::int64_t b) const;

private:
    const Problem& problem_;
};

/// Element n of an int32 tensor in host memory, by its last axis alone.
[[nodiscard]] std::int32_t int32_at(const ConstTensorView& view, std::int64_t n);

} // namespace flashomp
