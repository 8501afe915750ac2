// Products of matrices of float and double. They are compiled once for all arithmetics, as Eigen's take a compiler
// long.
#pragma once

#include "eigen.hpp"

namespace flashomp::reference {

template <class Scalar>
using MatrixOf = Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

/// A matrix that is not copied to be passed: rows of a larger one.
template <class Scalar>
using PartOf = Eigen::Ref<const MatrixOf<Scalar>, 0, Eigen::OuterStride<>>;

/// Which pairs of a block's rows and columns are visible.
using Visible = Eigen::Array<bool, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

/// left·rightᵀ
template <class Scalar>
[[nodiscard]] MatrixOf<Scalar> product_by_transposed(const PartOf<Scalar>& left, const PartOf<Scalar>& right);

/// left·right, of whose terms left(r, c)·right(c, x) only those with visible(r, c) take part: a hidden one is no term
/// of the sum, also where a factor is NaN or infinite and its product with 0 would be NaN.
template <class Scalar>
[[nodiscard]] MatrixOf<Scalar> product_of_visible(const PartOf<Scalar>& left, const PartOf<Scalar>& right,
                                                  const Visible& visible);

/// leftᵀ·right, likewise of the terms left(r, c)·right(r, x) with visible(r, c).
template <class Scalar>
[[nodiscard]] MatrixOf<Scalar> transposed_product_of_visible(const PartOf<Scalar>& left, const PartOf<Scalar>& right,
                                                             const Visible& visible);

} // namespace flashomp::reference
