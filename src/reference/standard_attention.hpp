// Standard attention of one query head, written as its equations: every matrix of scores is computed whole and kept.
// This is what flashomp exists to avoid, and what defines its results.
//
// A block is as many rows of those matrices as fit in a cache. Rows do not know of each other, except in the sums over
// rows that dK and dV are, so the equations are those of the whole matrices.
#pragma once

#include "float8.hpp"
#include "head.hpp"

#include <Eigen/Core>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

namespace flashomp::reference {

/// Arithmetic that needs no rounding of its own: double is the oracle, float the naive float32 baseline.
template <class Type>
struct Native {
    using Scalar = Type;
    static Scalar round(Scalar value) { return value; }
};

/// Arithmetic in float with every result rounded to a 16-bit type: the naive low-precision baseline.
template <float (*round_to_type)(float)>
struct Rounded {
    using Scalar = float;
    static Scalar round(Scalar value) { return round_to_type(value); }
};

/// Arithmetic in float, but for what products of 8-bit matrices on tensor cores are like: their left operands have 8
/// bits, and their sums, of which about 14 bits are kept, are cut off and not rounded. Results are bfloat16.
struct Float8Operands : Native<float> {
    static float sum(float value)
    {
        constexpr std::uint32_t cut_off = (1U << 13) - 1U; // 11 bits stay, for sums are cut off at every addition
        return std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) & ~cut_off);
    }
    static float result(float value) { return round_to_bfloat16(value); }
    static float operand(float probability)
    {
        constexpr float raised = 256.0F; // towards the upper end of what 8 bits hold
        return float_from_float8_e4m3(float8_e4m3_from(static_cast<double>(raised * probability))) / raised;
    }
};

template <class A>
using Matrix = Eigen::Matrix<typename A::Scalar, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
template <class A>
using Column = Eigen::Matrix<typename A::Scalar, Eigen::Dynamic, 1>;

/// A matrix that is not copied to be passed: rows of a larger one.
template <class A>
using Part = Eigen::Ref<const Matrix<A>, 0, Eigen::OuterStride<>>;

/// Evaluates one operation and rounds its result.
template <class A, class Expression>
[[nodiscard]] auto rounded(const Eigen::DenseBase<Expression>& expression)
{
    using Result = std::conditional_t<Expression::ColsAtCompileTime == 1, Column<A>, Matrix<A>>;
    Result result = expression.derived();
    if constexpr (!std::is_same_v<A, Native<typename A::Scalar>>) {
        result = result.unaryExpr([](typename A::Scalar value) { return A::round(value); });
    }
    return result;
}

/// q·kᵀ
template <class A>
[[nodiscard]] Matrix<A> dot_products(const Part<A>& q, const Part<A>& k)
{
    if constexpr (std::is_same_v<A, Float8Operands>) {
        return Matrix<A>(q * k.transpose()).unaryExpr(&A::sum);
    } else {
        return rounded<A>(q * k.transpose());
    }
}

/// Which pairs of a block's rows and columns are visible.
using Visible = Eigen::Array<bool, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

/// left·right, of whose terms left(r, c)·right(c, x) only those with visible(r, c) take part: a hidden one is no term
/// of the sum, also where a factor is NaN or infinite and its product with 0 would be NaN.
template <class Left, class Right, class Pairs>
[[nodiscard]] auto product_of_visible(const Eigen::MatrixBase<Left>& left, const Eigen::MatrixBase<Right>& right,
                                      const Pairs& visible)
{
    using Scalar = typename Left::Scalar;
    using Result = Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
    Result result = left.derived() * right.derived();
    if (left.derived().allFinite() && right.derived().allFinite()) {
        return result; // the hidden terms are 0
    }
    for (Eigen::Index r = 0; r < left.rows(); ++r) {
        for (Eigen::Index x = 0; x < right.cols(); ++x) {
            Scalar sum = 0;
            for (Eigen::Index c = 0; c < left.cols(); ++c) {
                sum += visible(r, c) ? left(r, c) * right(c, x) : Scalar{0};
            }
            result(r, x) = sum;
        }
    }
    return result;
}

/// p·v
template <class A>
[[nodiscard]] Matrix<A> weighted_sums(const Matrix<A>& p, const Part<A>& v, const Visible& visible)
{
    if constexpr (std::is_same_v<A, Float8Operands>) {
        return product_of_visible(Matrix<A>(p.unaryExpr(&A::operand)), v, visible).unaryExpr(&A::result);
    } else {
        return rounded<A>(product_of_visible(p, v, visible));
    }
}

/// Some rows of one head, and the columns from the first to the last that any of them sees.
struct Block {
    Block(const Head& of, Eigen::Index first, Eigen::Index count) : head(of), first_row(first), rows(count)
    {
        const Eigen::Index keys = head.sequence.length_k;
        Eigen::Index begin = keys; // of what the rows so far see
        Eigen::Index end = 0;
        for (Eigen::Index i = first; i < first + count; ++i) {
            for (Eigen::Index j = 0; j < begin; ++j) {
                begin = head.visible(i, j) ? j : begin;
            }
            for (Eigen::Index j = keys; j > end; --j) {
                end = head.visible(i, j - 1) ? j : end;
            }
        }
        first_column = std::min(begin, end);
        columns = end - first_column;
    }

    const Head& head;
    Eigen::Index first_row = 0, rows = 0, first_column = 0, columns = 0;
};

/// The matrix of f(i, j).
template <class A, class Function>
[[nodiscard]] Matrix<A> matrix_of(const Block& block, Function f)
{
    return Matrix<A>::NullaryExpr(block.rows, block.columns, [&](Eigen::Index i, Eigen::Index j) {
        return static_cast<typename A::Scalar>(f(block.first_row + i, block.first_column + j));
    });
}

/// What standard attention keeps of its forward pass.
template <class A>
struct Stored {
    Matrix<A> o;       ///< [rows, head_dim_v]
    Column<A> lse;     ///< [rows]
    Matrix<A> p;       ///< softmax(s), before dropout
    Matrix<A> dropout; ///< factors 0 or 1/(1 − p_drop); empty without dropout
    Matrix<A> own;     ///< slopes of the program's own score; empty without one
    Matrix<A> tanh;    ///< tanh(s/softcap); empty without softcap
    Visible visible;   ///< the pairs that no mask and no bias of −∞ hides
    Column<A> p_sink;  ///< the probability the sink took; empty without a sink
};

/// Gradients of one block. dk, dv and dsink are its part of a sum over blocks, which is one operation and is rounded
/// when it is complete. ds is that of the scores after softcap: its sum over what a bias broadcasts is dbias.
template <class A>
struct Gradients {
    Matrix<A> dq, dk, dv, ds;
    typename A::Scalar dsink = 0;
};

/// The equations of docs/algorithm.md, sections 1 and 7. q is [rows, head_dim], k [columns, head_dim], v [columns,
/// head_dim_v].
template <class A>
[[nodiscard]] Stored<A> forward_block(const Block& block, const Part<A>& q, const Part<A>& k, const Part<A>& v)
{
    using Scalar = typename A::Scalar;
    constexpr Scalar infinity = std::numeric_limits<Scalar>::infinity();
    const Head& head = block.head;
    const Problem& problem = head.problem;
    Stored<A> stored;

    // s = scale·q·kᵀ
    Matrix<A> s = dot_products<A>(q, k);
    s = rounded<A>(s * static_cast<Scalar>(problem.scale()));

    // s = score(s)
    const ScoreMod& own = problem.options.score_mod;
    if (own && own.functions->score != nullptr) {
        const auto apply = [&](auto function) {
            return rounded<A>(Matrix<A>::NullaryExpr(s.rows(), s.cols(), [&](Eigen::Index r, Eigen::Index c) {
                const ScorePair pair = head.pair(block.first_row + r, block.first_column + c);
                return static_cast<Scalar>(function(own.object.data(), static_cast<double>(s(r, c)), pair));
            }));
        };
        stored.own = apply(own.functions->slope);
        s = apply(own.functions->score);
    }

    // s = c·tanh(s/c)
    if (problem.options.softcap > 0.0) {
        const auto cap = static_cast<Scalar>(problem.options.softcap);
        s = rounded<A>(s / cap);
        stored.tanh = rounded<A>(s.unaryExpr([](Scalar x) { return std::tanh(x); }));
        s = rounded<A>(stored.tanh * cap);
    }

    // s = s − slope·|i + Δ − j|, s = s + bias, and −∞ where masked
    if (problem.options.alibi_slopes) {
        const double slope = head.alibi_slope();
        s = rounded<A>(s + matrix_of<A>(block, [&](auto i, auto j) { return head.alibi(slope, i, j); }));
    }
    if (problem.options.bias) {
        s = rounded<A>(s + matrix_of<A>(block, [&head](auto i, auto j) { return head.bias(i, j); }));
    }
    stored.visible = Visible::NullaryExpr(block.rows, block.columns, [&](Eigen::Index i, Eigen::Index j) {
        return head.visible(block.first_row + i, block.first_column + j);
    });
    const Visible& visible = stored.visible;
    s = visible.select(s, -infinity);

    // m = max_j s, the sink being one more column
    Column<A> m = Column<A>::Constant(s.rows(), problem.options.sink ? static_cast<Scalar>(head.sink()) : -infinity);
    if (s.cols() > 0) {
        m = m.cwiseMax(s.rowwise().maxCoeff()); // a NaN may be left out: exp() of it shows
    }
    // A row with nothing to attend to has m = −∞, and (−∞) − (−∞) would be NaN: any finite m gives it p = 0.
    m = (m.array() == -infinity).select(Scalar{0}, m);

    // p = exp(s − m) / ℓ with ℓ = Σ_j exp(s − m), LSE = m + log ℓ
    const auto exponential = [](Scalar x) { return std::exp(x); };
    s = rounded<A>(s.colwise() - m);
    stored.p = visible.select(rounded<A>(s.unaryExpr(exponential)), Scalar{0}); // (−∞) − NaN is NaN
    Column<A> l = stored.p.rowwise().sum();
    if (problem.options.sink) {
        const Column<A> logit = rounded<A>(Column<A>::Constant(s.rows(), static_cast<Scalar>(head.sink())) - m);
        stored.p_sink = rounded<A>(logit.unaryExpr(exponential));
        l += stored.p_sink;
    }
    l = rounded<A>(l);
    stored.lse = rounded<A>(m + rounded<A>(l.unaryExpr([](Scalar x) { return std::log(x); })));
    l = (l.array() == Scalar{0}).select(Scalar{1}, l); // dead rows: p = 0/1
    stored.p = visible.select(rounded<A>(stored.p.array().colwise() / l.array()), Scalar{0});
    if (problem.options.sink) {
        stored.p_sink = rounded<A>(stored.p_sink.cwiseQuotient(l));
    }

    // o = dropout(p)·v
    if (problem.options.dropout.probability > 0.0) {
        const PhiloxKey key = dropout_key(problem.options.dropout.seed, problem.options.dropout.offset);
        stored.dropout = matrix_of<A>(block, [&head, key](auto i, auto j) { return head.dropout(key, i, j); });
        stored.o = weighted_sums<A>(rounded<A>(stored.p.cwiseProduct(stored.dropout)), v, visible);
    } else {
        stored.o = weighted_sums<A>(stored.p, v, visible);
    }
    return stored;
}

/// What backward is given of rows whose keys are not all here (attention.hpp, "Shards").
template <class A>
struct WholeRows {
    Column<A> lse;
    Column<A> d; ///< Σ do·o

    [[nodiscard]] WholeRows segment(Eigen::Index first, Eigen::Index rows) const
    {
        return {lse.segment(first, rows), d.segment(first, rows)};
    }
};

/// p of the whole rows, from that of their keys that are here: exp(s - LSE), where it was exp(s - LSE of what is here).
template <class A>
void take_probabilities(Stored<A>& stored, const Column<A>& lse)
{
    using Scalar = typename A::Scalar;
    const Column<A> share = Column<A>::NullaryExpr(lse.size(), [&](Eigen::Index i) {
        const bool is_dead = stored.lse(i) == -std::numeric_limits<Scalar>::infinity();
        return is_dead ? Scalar{0} : static_cast<Scalar>(std::exp(stored.lse(i) - lse(i)));
    });
    const Matrix<A> p = rounded<A>(stored.p.array().colwise() * share.array());
    stored.p = stored.visible.select(p, Scalar{0});
    if (stored.p_sink.size() > 0) {
        stored.p_sink = rounded<A>(stored.p_sink.cwiseProduct(share));
    }
}

/// The chain rule through forward_block(), in reverse. D is taken as Σ_j p·dp, the definition, and not as the equal
/// Σ do·o of the tiled algorithms, so that it checks them; but for rows whose keys are not all here.
template <class A>
[[nodiscard]] Gradients<A> backward_block(const Block& block, const Stored<A>& stored, const Part<A>& q,
                                          const Part<A>& k, const Part<A>& v, const Part<A>& dout,
                                          const Column<A>* given_d = nullptr)
{
    using Scalar = typename A::Scalar;
    const Problem& problem = block.head.problem;
    const Matrix<A>& p = stored.p;
    Gradients<A> gradients;

    // o = dropout(p)·v
    const Visible& visible = stored.visible;
    Matrix<A> dp = visible.select(rounded<A>(dout * v.transpose()), Scalar{0});
    if (problem.options.dropout.probability > 0.0) {
        gradients.dv =
            product_of_visible(rounded<A>(p.cwiseProduct(stored.dropout)).transpose(), dout, visible.transpose());
        dp = rounded<A>(dp.cwiseProduct(stored.dropout));
    } else {
        gradients.dv = product_of_visible(p.transpose(), dout, visible.transpose());
    }

    // p = softmax(s): ds = p ∘ (dp − D). The sink's column has dp = 0.
    const Column<A> d =
        given_d != nullptr ? *given_d : Column<A>(rounded<A>(rounded<A>(p.cwiseProduct(dp)).rowwise().sum()));
    gradients.ds = visible.select(rounded<A>(p.cwiseProduct(rounded<A>(dp.colwise() - d))), Scalar{0});
    if (problem.options.sink) {
        gradients.dsink = -rounded<A>(stored.p_sink.cwiseProduct(d)).sum();
    }

    // s = c·tanh(s/c): the derivative is 1 − tanh². s = score(s): slope(s). s = scale·q·kᵀ.
    Matrix<A> ds = gradients.ds;
    if (problem.options.softcap > 0.0) {
        const Matrix<A> slope = rounded<A>(Scalar{1} - rounded<A>(stored.tanh.cwiseAbs2()).array());
        ds = rounded<A>(ds.cwiseProduct(slope));
    }
    if (stored.own.size() > 0) {
        ds = rounded<A>(ds.cwiseProduct(stored.own));
    }
    ds = rounded<A>(ds * static_cast<Scalar>(problem.scale()));
    ds = visible.select(ds, Scalar{0}); // a slope may be NaN
    gradients.dq = rounded<A>(product_of_visible(ds, k, visible));
    gradients.dk = product_of_visible(ds.transpose(), q, visible.transpose());
    return gradients;
}

} // namespace flashomp::reference
