#include "standard_attention.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

namespace flashomp::reference {

namespace {

/// q·kᵀ
template <class A>
Matrix<A> dot_products(const Part<A>& q, const Part<A>& k)
{
    const Matrix<A> sums = product_by_transposed<typename A::Scalar>(q, k);
    if constexpr (std::is_same_v<A, Float8Operands>) {
        return sums.unaryExpr(&A::sum);
    } else {
        return rounded<A>(sums);
    }
}

/// p·v
template <class A>
Matrix<A> weighted_sums(const Matrix<A>& p, const Part<A>& v, const Visible& visible)
{
    if constexpr (std::is_same_v<A, Float8Operands>) {
        return product_of_visible<typename A::Scalar>(Matrix<A>(p.unaryExpr(&A::operand)), v, visible)
            .unaryExpr(&A::result);
    } else {
        return rounded<A>(product_of_visible<typename A::Scalar>(p, v, visible));
    }
}

/// The matrix of f(i, j).
template <class A, class Function>
Matrix<A> matrix_of(const Block& block, Function f)
{
    return Matrix<A>::NullaryExpr(block.rows, block.columns, [&](Eigen::Index i, Eigen::Index j) {
        return static_cast<typename A::Scalar>(f(block.first_row + i, block.first_column + j));
    });
}

} // namespace

Block::Block(const Head& of, Eigen::Index first, Eigen::Index count) : head(of), first_row(first), rows(count)
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

template <class A>
Stored<A> forward_block(const Block& block, const Part<A>& q, const Part<A>& k, const Part<A>& v)
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

template <class A>
Gradients<A> backward_block(const Block& block, const Stored<A>& stored, const Part<A>& q, const Part<A>& k,
                            const Part<A>& v, const Part<A>& dout, const Column<A>* given_d)
{
    using Scalar = typename A::Scalar;
    const Problem& problem = block.head.problem;
    const Matrix<A>& p = stored.p;
    Gradients<A> gradients;

    // o = dropout(p)·v
    const Visible& visible = stored.visible;
    Matrix<A> dp = visible.select(rounded<A>(product_by_transposed<Scalar>(dout, v)), Scalar{0});
    if (problem.options.dropout.probability > 0.0) {
        gradients.dv = transposed_product_of_visible<Scalar>(rounded<A>(p.cwiseProduct(stored.dropout)), dout, visible);
        dp = rounded<A>(dp.cwiseProduct(stored.dropout));
    } else {
        gradients.dv = transposed_product_of_visible<Scalar>(p, dout, visible);
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
    gradients.dq = rounded<A>(product_of_visible<Scalar>(ds, k, visible));
    gradients.dk = transposed_product_of_visible<Scalar>(ds, q, visible);
    return gradients;
}

#define FLASHOMP_INSTANTIATE(...)                                                                                      \
    template Stored<__VA_ARGS__> forward_block(const Block&, const Part<__VA_ARGS__>&, const Part<__VA_ARGS__>&,       \
                                               const Part<__VA_ARGS__>&);                                              \
    template Gradients<__VA_ARGS__> backward_block(const Block&, const Stored<__VA_ARGS__>&, const Part<__VA_ARGS__>&, \
                                                   const Part<__VA_ARGS__>&, const Part<__VA_ARGS__>&,                 \
                                                   const Part<__VA_ARGS__>&, const Column<__VA_ARGS__>*);
FLASHOMP_INSTANTIATE(Native<double>)
FLASHOMP_INSTANTIATE(Native<float>)
FLASHOMP_INSTANTIATE(Rounded<round_to_bfloat16>)
FLASHOMP_INSTANTIATE(Rounded<round_to_float16>)
FLASHOMP_INSTANTIATE(Float8Operands)
#undef FLASHOMP_INSTANTIATE

} // namespace flashomp::reference
