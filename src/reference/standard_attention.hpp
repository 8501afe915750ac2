// Standard attention of one query head, written as its equations: every matrix of scores is computed whole and kept.
// This is what flashomp exists to avoid, and what defines its results.
//
// A block is as many rows of those matrices as fit in a cache. Rows do not know of each other, except in the sums over
// rows that dK and dV are, so the equations are those of the whole matrices.
#pragma once

#include "float8.hpp"
#include "head.hpp"
#include "products.hpp"

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
using Matrix = MatrixOf<typename A::Scalar>;
template <class A>
using Column = Eigen::Matrix<typename A::Scalar, Eigen::Dynamic, 1>;

template <class A>
using Part = PartOf<typename A::Scalar>;

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

/// Some rows of one head, and the columns from the first to the last that any of them sees.
struct Block {
    Block(const Head& of, Eigen::Index first, Eigen::Index count);

    const Head& head;
    Eigen::Index first_row = 0, rows = 0, first_column = 0, columns = 0;
};

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
[[nodiscard]] Stored<A> forward_block(const Block& block, const Part<A>& q, const Part<A>& k, const Part<A>& v);

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
                                          const Column<A>* given_d = nullptr);

} // namespace flashomp::reference
