#include "products.hpp"

namespace flashomp::reference {

namespace {

/// `product`, which is left·right, unless a hidden term may have spoilt it: then by its definition.
template <class Scalar, class Left, class Pairs>
MatrixOf<Scalar> without_hidden(MatrixOf<Scalar> product, const Left& left, const PartOf<Scalar>& right,
                                const Pairs& visible)
{
    if (left.allFinite() && right.allFinite()) {
        return product; // the hidden terms are 0
    }
    for (Eigen::Index r = 0; r < left.rows(); ++r) {
        for (Eigen::Index x = 0; x < right.cols(); ++x) {
            Scalar sum = 0;
            for (Eigen::Index c = 0; c < left.cols(); ++c) {
                sum += visible(r, c) ? left(r, c) * right(c, x) : Scalar{0};
            }
            product(r, x) = sum;
        }
    }
    return product;
}

} // namespace

template <class Scalar>
MatrixOf<Scalar> product_by_transposed(const PartOf<Scalar>& left, const PartOf<Scalar>& right)
{
    return left * right.transpose();
}

template <class Scalar>
MatrixOf<Scalar> product_of_visible(const PartOf<Scalar>& left, const PartOf<Scalar>& right, const Visible& visible)
{
    return without_hidden<Scalar>(left * right, left, right, visible);
}

template <class Scalar>
MatrixOf<Scalar> transposed_product_of_visible(const PartOf<Scalar>& left, const PartOf<Scalar>& right,
                                               const Visible& visible)
{
    return without_hidden<Scalar>(left.transpose() * right, left.transpose(), right, visible.transpose());
}

#define FLASHOMP_INSTANTIATE(Scalar)                                                                                   \
    template MatrixOf<Scalar> product_by_transposed(const PartOf<Scalar>&, const PartOf<Scalar>&);                     \
    template MatrixOf<Scalar> product_of_visible(const PartOf<Scalar>&, const PartOf<Scalar>&, const Visible&);        \
    template MatrixOf<Scalar> transposed_product_of_visible(const PartOf<Scalar>&, const PartOf<Scalar>&,              \
                                                            const Visible&);
FLASHOMP_INSTANTIATE(float)
FLASHOMP_INSTANTIATE(double)
#undef FLASHOMP_INSTANTIATE

} // namespace flashomp::reference
