// Attention by the library: forward() and backward() of views into the model's own matrices.
#pragma once

#include "attention.hpp"

namespace gpt {

template <class S>
inline constexpr flashomp::DType dtype_of = flashomp::DType::float32;
template <>
inline constexpr flashomp::DType dtype_of<bfloat16> = flashomp::DType::bfloat16;

/// [batch, seqlen, heads, head_dim] of the columns from `column` of a matrix of rows.
template <class S>
[[nodiscard]] flashomp::TensorView heads_view(const Rows<S>& rows, Index column, Index batch, Index heads,
                                              Index head_dim)
{
    const Index width = rows.cols();
    const Index seqlen = rows.rows() / batch;
    return {const_cast<S*>(rows.data()) + column,
            dtype_of<S>,
            {batch, seqlen, heads, head_dim},
            {seqlen * width, width, head_dim, 1}};
}

/// [heads], or no tensor.
[[nodiscard]] inline flashomp::ConstTensorView slopes_view(const Heads& heads)
{
    return heads.slopes.empty() ? flashomp::ConstTensorView()
                                : flashomp::ConstTensorView::contiguous(heads.slopes, {heads.heads});
}

template <class S>
class FlashAttention final : public Attention<S> {
public:
    explicit FlashAttention(const flashomp::Options& options) : options_(options)
    {
        options_.causal = flashomp::Causal::bottom_right;
    }

    void forward(const Heads& heads, const Rows<S>& qkv, const flashomp::Dropout& dropout, Rows<S> o,
                 AttentionKept<S>& kept, Meter& meter) override
    {
        kept.lse = Kept<float>(meter, heads.batch * heads.heads, heads.seqlen);
        report_ = flashomp::forward({q(heads, qkv), k(heads, qkv), v(heads, qkv), out(heads, o), lse(heads, kept)},
                                    with(heads, dropout));
    }

    void backward(const Heads& heads, const Rows<S>& qkv, const Rows<S>& o, const AttentionKept<S>& kept,
                  const Rows<S>& dout, const flashomp::Dropout& dropout, Rows<S> dqkv) override
    {
        // The library takes gradients that are columns of one matrix for overlapping where heads and key heads differ.
        Matrix<S> dq(heads.rows(), heads.key_column());
        Matrix<S> dk(heads.rows(), heads.heads_kv * heads.head_dim);
        Matrix<S> dv(dk.rows(), dk.cols());
        const auto gradient = [&](Matrix<S>& rows, Index count) {
            return heads_view(Rows<S>(rows.data(), rows.rows(), rows.cols()), 0, heads.batch, count, heads.head_dim);
        };
        report_ = flashomp::backward({q(heads, qkv), k(heads, qkv), v(heads, qkv), out(heads, o), lse(heads, kept),
                                      out(heads, dout), gradient(dq, heads.heads), gradient(dk, heads.heads_kv),
                                      gradient(dv, heads.heads_kv)},
                                     with(heads, dropout));
        dqkv << dq, dk, dv;
    }

    [[nodiscard]] std::string ran_on() const override
    {
        return report_.backend + " (" + report_.ran_on + ", " + report_.machine + ")";
    }

private:
    static flashomp::TensorView q(const Heads& heads, const Rows<S>& qkv)
    {
        return heads_view(qkv, 0, heads.batch, heads.heads, heads.head_dim);
    }
    static flashomp::TensorView k(const Heads& heads, const Rows<S>& qkv)
    {
        return heads_view(qkv, heads.key_column(), heads.batch, heads.heads_kv, heads.head_dim);
    }
    static flashomp::TensorView v(const Heads& heads, const Rows<S>& qkv)
    {
        return heads_view(qkv, heads.value_column(), heads.batch, heads.heads_kv, heads.head_dim);
    }
    static flashomp::TensorView out(const Heads& heads, const Rows<S>& o)
    {
        return heads_view(o, 0, heads.batch, heads.heads, heads.head_dim);
    }
    static flashomp::TensorView lse(const Heads& heads, const AttentionKept<S>& kept)
    {
        return flashomp::TensorView::contiguous(kept.lse.data(), flashomp::DType::float32,
                                                {heads.batch, heads.heads, heads.seqlen});
    }

    [[nodiscard]] flashomp::Options with(const Heads& heads, const flashomp::Dropout& dropout) const
    {
        flashomp::Options options = options_;
        options.alibi_slopes = slopes_view(heads);
        options.dropout = dropout;
        return options;
    }

    flashomp::Options options_;
    flashomp::Report report_;
};

} // namespace gpt
