#pragma once

#include "problem.hpp"

namespace flashomp {

/// Checks, of a problem whose k and v are a cache and whose batch is known, which of the cache's options go together,
/// and sets seqlen_k: the most keys that a sequence could have. Reads no table.
void check_cache(Problem& problem);

/// Checks the values of the tables of a valid problem, which are those of one run. Nothing happens without a cache.
void check_cache_values(const Problem& problem);

/// Checks scales of a cache of 8 bits that are in host memory: with rank 2 those of a page, or of a sequence of a
/// cache without pages, with rank 1 those of all.
void check_scales(const Problem& problem, int rank, std::int64_t page);

} // namespace flashomp
