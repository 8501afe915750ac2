#pragma once

#include "head.hpp"
#include "standard_attention.hpp"

#include <cstdint>

namespace flashomp::reference {

/// The keys, or values, of one key head of one sequence, from a cache; `scales` are of its elements where they have
/// 8 bits.
template <class A>
Matrix<A> load_cached(const Problem& problem, const ConstTensorView& view, const ConstTensorView& scales,
                      const Sequence& sequence, std::int64_t head)
{
    const KeyCache cache(problem);
    return Matrix<A>::NullaryExpr(sequence.length_k, view.shape[3], [&](Eigen::Index j, Eigen::Index c) {
        const std::int64_t page = cache.page(sequence.batch, j / cache.page_rows());
        const double scale =
            scales ? read_element(scales, scales.rank == 1 ? head : page * scales.strides[0] + head) : 1.0;
        return A::round(static_cast<typename A::Scalar>(
            scale * read_element(view, page * view.strides[0] + j % cache.page_rows() * view.strides[1] +
                                           head * view.strides[2] + c * view.strides[3])));
    });
}

} // namespace flashomp::reference
