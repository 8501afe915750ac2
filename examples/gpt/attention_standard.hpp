// Standard attention: the N x N matrices of all heads are stored from the forward to the backward pass, as automatic
// differentiation stores them. This is what flashomp is compared with.
#pragma once

#include "attention.hpp"

#include <cmath>
#include <limits>

namespace gpt {

template <class S>
class StandardAttention final : public Attention<S> {
    using C = Number<S>;
    using Head = Eigen::Map<Matrix<S>, 0, Eigen::OuterStride<>>; ///< [seqlen, head_dim] inside a matrix of rows

public:
    /// s = q·kᵀ/√d − slope·(i − j), p = softmax(s), o = dropout(p)·v.
    void forward(const Heads& heads, const Rows<S>& qkv, const flashomp::Dropout& dropout, Rows<S> o,
                 AttentionKept<S>& kept, Meter& meter) override
    {
        const Index n = heads.seqlen;
        kept.p = Kept<S>(meter, heads.batch * heads.heads * n, n);
        if (dropout.probability > 0) {
            kept.mask = Kept<std::uint8_t>(meter, heads.batch * heads.heads * n, n);
            kept.dropped = Kept<S>(meter, heads.batch * heads.heads * n, n);
            flashomp::dropout_mask(dropout, flashomp::TensorView::contiguous(kept.mask.data(), flashomp::DType::boolean,
                                                                             {heads.batch, heads.heads, n, n}));
        }
        for_blocks(heads.batch * heads.heads, 1, [&](Index i, Index) {
            const Index batch = i / heads.heads;
            const Index head = i % heads.heads;
            const Index head_kv = head / (heads.heads / heads.heads_kv);
            Matrix<C> s(n, n);
            s.noalias() = head_of(qkv, heads, batch, head, 0).template cast<C>() *
                          head_of(qkv, heads, batch, head_kv, heads.key_column()).template cast<C>().transpose();
            s *= scale(heads);
            const C slope = heads.slopes.empty() ? C(0) : static_cast<C>(heads.slopes[static_cast<std::size_t>(head)]);
            for (Index row = 0; row < n; ++row) {
                auto seen = s.row(row).head(row + 1);
                if (slope > C(0)) {
                    seen.array() -= slope * Eigen::Array<C, 1, Eigen::Dynamic>::LinSpaced(row + 1, C(row), C(0));
                }
                const C most = seen.maxCoeff();
                seen = (seen.array() - most).exp().matrix();
                seen /= seen.sum();
                s.row(row).tail(n - row - 1).setZero(); // the causal mask
            }
            matrix_of(kept.p, i, n) = s.template cast<S>();
            if (kept.mask) {
                s = s.cwiseProduct(factors(kept, i, n, dropout));
                matrix_of(kept.dropped, i, n) = s.template cast<S>();
            }
            const Rows<S> weights = matrix_of(kept.mask ? kept.dropped : kept.p, i, n);
            const Matrix<C> sums = weights.template cast<C>() *
                                   head_of(qkv, heads, batch, head_kv, heads.value_column()).template cast<C>();
            head_of(o, heads, batch, head, 0) = sums.template cast<S>();
        });
    }

    /// dv = dropout(p)ᵀ·do, dp = dropout(do·vᵀ), ds = p ∘ (dp − rowsum(p ∘ dp)), dq = ds·k/√d, dk = dsᵀ·q/√d.
    void backward(const Heads& heads, const Rows<S>& qkv, const Rows<S>& /*o*/, const AttentionKept<S>& kept,
                  const Rows<S>& dout, const flashomp::Dropout& dropout, Rows<S> dqkv) override
    {
        const Index n = heads.seqlen;
        const Index group = heads.heads / heads.heads_kv;
        // Heads that share a key head add to the same dk and dv: a task is a key head.
        for_blocks(heads.batch * heads.heads_kv, 1, [&](Index task, Index) {
            const Index batch = task / heads.heads_kv;
            const Index head_kv = task % heads.heads_kv;
            const Matrix<C> k = head_of(qkv, heads, batch, head_kv, heads.key_column()).template cast<C>();
            const Matrix<C> v = head_of(qkv, heads, batch, head_kv, heads.value_column()).template cast<C>();
            Matrix<C> dk = Matrix<C>::Zero(n, heads.head_dim);
            Matrix<C> dv = Matrix<C>::Zero(n, heads.head_dim);
            for (Index head = head_kv * group; head < (head_kv + 1) * group; ++head) {
                const Index i = batch * heads.heads + head;
                const Matrix<C> q = head_of(qkv, heads, batch, head, 0).template cast<C>();
                const Matrix<C> gradient = head_of(dout, heads, batch, head, 0).template cast<C>();
                dv.noalias() +=
                    matrix_of(kept.mask ? kept.dropped : kept.p, i, n).template cast<C>().transpose() * gradient;
                Matrix<C> ds(n, n); // dp, to begin with
                ds.noalias() = gradient * v.transpose();
                if (kept.mask) {
                    ds = ds.cwiseProduct(factors(kept, i, n, dropout));
                }
                const Rows<S> p = matrix_of(kept.p, i, n);
                for (Index row = 0; row < n; ++row) {
                    const auto probabilities = p.row(row).template cast<C>().array();
                    const C delta = (probabilities * ds.row(row).array()).sum();
                    ds.row(row) = (probabilities * (ds.row(row).array() - delta) * scale(heads)).matrix();
                }
                dk.noalias() += ds.transpose() * q;
                const Matrix<C> dq = ds * k;
                head_of(dqkv, heads, batch, head, 0) = dq.template cast<S>();
            }
            head_of(dqkv, heads, batch, head_kv, heads.key_column()) = dk.template cast<S>();
            head_of(dqkv, heads, batch, head_kv, heads.value_column()) = dv.template cast<S>();
        });
    }

    [[nodiscard]] std::string ran_on() const override { return "standard (host, Eigen)"; }

private:
    static C scale(const Heads& heads) { return C(1) / std::sqrt(static_cast<C>(heads.head_dim)); }

    static Head head_of(const Rows<S>& rows, const Heads& heads, Index batch, Index head, Index column)
    {
        S* const first =
            const_cast<S*>(rows.data()) + batch * heads.seqlen * rows.cols() + column + head * heads.head_dim;
        return {first, heads.seqlen, heads.head_dim, Eigen::OuterStride<>(rows.cols())};
    }

    template <class T>
    static Rows<T> matrix_of(const Kept<T>& all, Index i, Index n)
    {
        return {all.data() + i * n * n, n, n};
    }

    /// mask/(1 − probability) of one head.
    static Matrix<C> factors(const AttentionKept<S>& kept, Index i, Index n, const flashomp::Dropout& dropout)
    {
        return matrix_of(kept.mask, i, n).template cast<C>() * static_cast<C>(1 / (1 - dropout.probability));
    }
};

} // namespace gpt
