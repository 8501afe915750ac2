#include "cache_lengths.hpp"

#include "cache.hpp"

#include <cstddef>

namespace flashomp {

namespace {

/// Of a cache of 8 bits kernels look every length up.
bool are_computed(const Problem& problem)
{
    return problem.options.kv_last_page_len || (problem.is_quantised() && !problem.options.cache_seqlens);
}

} // namespace

CacheLengths::CacheLengths(const Problem& problem)
    : lengths_(are_computed(problem) ? static_cast<std::size_t>(problem.batch) : 0)
{
}

ConstTensorView CacheLengths::view() const
{
    return lengths_.empty() ? ConstTensorView{}
                            : ConstTensorView::contiguous(std::span(lengths_), {std::ssize(lengths_)});
}

Boundaries CacheLengths::read(const Problem& problem, Boundaries boundaries, Tensors& tensors)
{
    const KeyCache cache(problem);
    for (std::size_t b = 0; b < lengths_.size(); ++b) {
        lengths_[b] = static_cast<std::int32_t>(cache.length(static_cast<std::int64_t>(b)));
    }
    const ConstTensorView here = lengths_.empty() ? problem.options.cache_seqlens : view();
    if (here) {
        boundaries.lengths = static_cast<const std::int32_t*>(tensors.input(here).data);
    }
    return boundaries;
}

} // namespace flashomp
