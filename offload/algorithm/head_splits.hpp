// dK and dV where a pass has fewer key blocks than keep the crews busy, as with one key head for many query heads: the
// query heads of a group are shared out among `head_splits` crews, each leaves its sums as float32, and the crew that
// comes last adds them up, always in the same order.
#pragma once

#include "algorithm/params.hpp"

#pragma omp declare target

namespace flashomp::offload {

/// Parts of a group's query heads. Under CUDA a constant: its launches do not split them.
FLASHOMP_INLINE int head_splits([[maybe_unused]] const Params& p)
{
#ifdef __CUDACC__
    return 1;
#else
    return p.head_splits;
#endif
}

/// Rows [first, first + count) of one split's sums, `data` being Params::partial_dk or partial_dv.
FLASHOMP_INLINE Rows partial_rows(const Params& p, float* data, int split, int batch, int head, std::int64_t first,
                                  int count, int depth)
{
    const std::int64_t row = split * p.partial_keys + batch * p.key_rows.batch + head * p.key_rows.head + first;
    return {data, row * depth, depth, count, depth, Element::float32};
}

} // namespace flashomp::offload

#pragma omp end declare target
