// The layers but for attention, each with its forward and its backward pass.
//
// x and y are [rows, width], a row for each token. S is the type that activations are stored in, C = Number<S> the type
// that everything is computed in. Gradients are C. A backward pass gets dy, the loss's gradient with respect to y, adds
// those of the weights to what is there and returns dx.
#pragma once

#include "matrix.hpp"

#include <cmath>
#include <cstdint>
#include <numbers>
#include <span>

namespace gpt {

/// x = E[token] + P[position]: rows of the table of tokens [vocabulary, width] and of positions [seqlen, width].
template <class C>
Matrix<C> embedding(std::span<const std::int32_t> tokens, Index first_position, Index seqlen, const Rows<C>& table,
                    const Rows<C>& positions)
{
    Matrix<C> x(static_cast<Index>(tokens.size()), table.cols());
    for (Index row = 0; row < x.rows(); ++row) {
        x.row(row) = table.row(tokens[static_cast<std::size_t>(row)]) + positions.row(first_position + row % seqlen);
    }
    return x;
}

/// dE[token] += dx, dP[position] += dx.
template <class C>
void embedding_backward(std::span<const std::int32_t> tokens, Index seqlen, const Matrix<C>& dx, Rows<C> dtable,
                        Rows<C> dpositions)
{
    for (Index row = 0; row < dx.rows(); ++row) { // in order: two tokens may share a row of the table
        dtable.row(tokens[static_cast<std::size_t>(row)]) += dx.row(row);
        dpositions.row(row % seqlen) += dx.row(row);
    }
}

/// Mean and 1/σ of a row: what layer norm subtracts and multiplies by.
template <class C>
struct RowStatistics {
    C mean, inverse;

    template <class Vector>
    explicit RowStatistics(const Vector& x)
    {
        constexpr C epsilon = C(1e-5);
        mean = x.mean();
        inverse = C(1) / std::sqrt((x.array() - mean).square().mean() + epsilon);
    }
};

/// y = x̂ ∘ g + b with x̂ = (x − mean(x))/σ(x) of each row (Ba et al. 2016).
template <class C, class X, class Y>
void layer_norm(const X& x, const Rows<C>& g, const Rows<C>& b, Y&& y)
{
    using Stored = typename std::remove_cvref_t<Y>::Scalar;
    for_blocks(x.rows(), block_rows, [&](Index first, Index count) {
        Eigen::Matrix<C, 1, Eigen::Dynamic> row(x.cols());
        for (Index i = first; i < first + count; ++i) {
            row = x.row(i).template cast<C>();
            const RowStatistics<C> statistics(row);
            row = ((row.array() - statistics.mean) * statistics.inverse) * g.row(0).array() + b.row(0).array();
            y.row(i) = row.template cast<Stored>();
        }
    });
}

/// With h = dy ∘ g: dx = (h − mean(h) − x̂·mean(h ∘ x̂))/σ, dg = Σ_rows dy ∘ x̂, db = Σ_rows dy. The statistics of a row
/// are computed from x once more, not kept. dx is added to what it holds: a block's residual connection.
template <class C, class X>
void layer_norm_backward(const X& x, const Rows<C>& g, const Matrix<C>& dy, Matrix<C>& dx, Rows<C> dg, Rows<C> db)
{
    const Index blocks = (x.rows() + block_rows - 1) / block_rows;
    Matrix<C> part_g = Matrix<C>::Zero(blocks, x.cols()); // of each block, so that the sum has one order
    Matrix<C> part_b = Matrix<C>::Zero(blocks, x.cols());
    for_blocks(x.rows(), block_rows, [&](Index first, Index count) {
        Eigen::Matrix<C, 1, Eigen::Dynamic> normal(x.cols()), h(x.cols());
        for (Index i = first; i < first + count; ++i) {
            normal = x.row(i).template cast<C>();
            const RowStatistics<C> statistics(normal);
            normal = (normal.array() - statistics.mean) * statistics.inverse;
            h = dy.row(i).cwiseProduct(g.row(0));
            const C mean = h.mean();
            const C along = h.dot(normal) / static_cast<C>(x.cols());
            dx.row(i).array() += (h.array() - mean - normal.array() * along) * statistics.inverse;
            part_g.row(first / block_rows) += dy.row(i).cwiseProduct(normal);
            part_b.row(first / block_rows) += dy.row(i);
        }
    });
    dg += part_g.colwise().sum();
    db += part_b.colwise().sum();
}

/// y = x·W + b. `then(first, y)` gets each block of rows of y while it is in the cache, and stores what it makes of it.
template <class C, class X, class Then>
void linear(const X& x, const Rows<C>& w, const Rows<C>& b, const Then& then)
{
    for_blocks(x.rows(), block_rows, [&](Index first, Index count) {
        Matrix<C> y(count, w.cols());
        y.noalias() = x.middleRows(first, count).template cast<C>() * w;
        y.rowwise() += b.row(0);
        then(first, y);
    });
}

/// dx = dy·Wᵀ, dW = xᵀ·dy, db = Σ_rows dy. `then(first, dx)` may change each block of rows of dx.
template <class C, class X, class Then>
Matrix<C> linear_backward(const X& x, const Rows<C>& w, const Matrix<C>& dy, Rows<C> dw, Rows<C> db, const Then& then)
{
    constexpr Index block_columns = 64;
    Matrix<C> dx(x.rows(), x.cols());
    for_blocks(x.rows(), block_rows, [&](Index first, Index count) {
        auto rows = dx.middleRows(first, count);
        rows.noalias() = dy.middleRows(first, count) * w.transpose();
        then(first, rows);
    });
    for_blocks(w.rows(), block_columns, [&](Index first, Index count) {
        dw.middleRows(first, count).noalias() += x.middleCols(first, count).template cast<C>().transpose() * dy;
    });
    for_blocks(w.cols(), block_columns, [&](Index first, Index count) {
        db.middleCols(first, count) += dy.middleCols(first, count).colwise().sum();
    });
    return dx;
}

template <class C, class X>
Matrix<C> linear_backward(const X& x, const Rows<C>& w, const Matrix<C>& dy, Rows<C> dw, Rows<C> db)
{
    return linear_backward(x, w, dy, dw, db, [](Index, const auto&) {});
}

/// gelu(x) = x/2·(1 + tanh(u)) with u = √(2/π)·(x + a·x³), a = 0.044715 (Hendrycks and Gimpel 2016; GPT-2's form).
template <class C, class X>
auto gelu_tanh(const X& x)
{
    const C root = std::sqrt(C(2) / std::numbers::pi_v<C>);
    return (root * (x + C(0.044715) * x.cube())).tanh();
}

template <class C, class X>
Matrix<C> gelu(const X& x)
{
    const Eigen::Array<C, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor> value = x.template cast<C>();
    return C(0.5) * value * (C(1) + gelu_tanh<C>(value));
}

/// gelu′(x) = (1 + t)/2 + x/2·(1 − t²)·u′ with t = tanh(u), u′ = √(2/π)·(1 + 3·a·x²).
template <class C, class X>
Matrix<C> gelu_slope(const X& x)
{
    using Array = Eigen::Array<C, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
    const Array value = x.template cast<C>();
    const Array t = gelu_tanh<C>(value);
    const C root = std::sqrt(C(2) / std::numbers::pi_v<C>);
    return C(0.5) * (C(1) + t) +
           C(0.5) * value * (C(1) - t.square()) * (root * (C(1) + C(3 * 0.044715) * value.square()));
}

} // namespace gpt
