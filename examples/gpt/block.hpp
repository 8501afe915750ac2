// One layer of the model, pre-norm: x₁ = x + dropout(attention(norm(x))), y = x₁ + dropout(MLP(norm(x₁))).
#pragma once

#include "attention.hpp"
#include "dropout.hpp"
#include "operations.hpp"
#include "parameters.hpp"

namespace gpt {

/// What a layer keeps for its backward pass. In 16 bits, with s tokens, batch b, width h, all heads a and dropout, that
/// is 34·s·b·h bytes, and 5·a·s²·b more by standard attention (Korthikanti et al. 2022, section 4.1): x, norm1, qkv, o,
/// x1 and norm2 have 2, 2, 6, 2, 2 and 2 bytes a number, up and its gelu 8 and 8, the masks 1 and 1.
template <class S>
struct LayerKept {
    Kept<S> x, norm1, qkv, o;
    AttentionKept<S> attention;
    Kept<std::uint8_t> mask1;
    Kept<S> x1, norm2, up, hidden;
    Kept<std::uint8_t> mask2;

    /// All but x, from which the layer can be run again.
    void drop_all_but_input()
    {
        for (Kept<S>* const each : {&norm1, &qkv, &o, &x1, &norm2, &up, &hidden}) {
            each->drop();
        }
        mask1.drop();
        mask2.drop();
        attention.drop();
    }
};

/// The dropout of one layer: three places.
struct LayerDrops {
    flashomp::Dropout attention, out, down;
};
[[nodiscard]] inline LayerDrops drops_of(const Drops& drops, Index layer)
{
    const std::uint64_t first = 1 + places_per_layer * static_cast<std::uint64_t>(layer);
    return {drops.at(first), drops.at(first + 1), drops.at(first + 2)};
}

/// From kept.x to y. `attend(qkv, o, attention)` is attention: training's, or a cache's. Without y the layer stops
/// before its last product, whose result no backward pass needs.
template <class S, class C, class Attend>
void layer_forward(const LayerWeights<C>& w, LayerKept<S>& kept, const LayerDrops& drops, Meter& meter,
                   const Attend& attend, Kept<S>* y)
{
    const Index rows = kept.x.rows().rows();
    const Index dim = kept.x.rows().cols();
    const auto store = [](const Kept<S>& to, Index first, const Matrix<C>& block) {
        to.rows().middleRows(first, block.rows()) = block.template cast<S>();
    };
    kept.norm1 = Kept<S>(meter, rows, dim);
    layer_norm(kept.x.rows(), w.norm1, w.norm1_bias, kept.norm1.rows());
    kept.qkv = Kept<S>(meter, rows, w.qkv.cols());
    linear(kept.norm1.rows(), w.qkv, w.qkv_bias, [&](Index first, Matrix<C>& block) { store(kept.qkv, first, block); });
    kept.o = Kept<S>(meter, rows, dim);
    attend(kept.qkv.rows(), kept.o.rows(), kept.attention);

    kept.mask1 = draw(drops.out, rows, dim, meter);
    kept.x1 = Kept<S>(meter, rows, dim);
    linear(kept.o.rows(), w.out, w.out_bias, [&](Index first, Matrix<C>& block) {
        apply(kept.mask1, drops.out.probability, first, block);
        block += kept.x.rows().middleRows(first, block.rows()).template cast<C>();
        store(kept.x1, first, block);
    });
    kept.norm2 = Kept<S>(meter, rows, dim);
    layer_norm(kept.x1.rows(), w.norm2, w.norm2_bias, kept.norm2.rows());
    kept.up = Kept<S>(meter, rows, w.up.cols());
    kept.hidden = Kept<S>(meter, rows, w.up.cols());
    linear(kept.norm2.rows(), w.up, w.up_bias, [&](Index first, Matrix<C>& block) {
        store(kept.up, first, block);
        store(kept.hidden, first, gelu<C>(kept.up.rows().middleRows(first, block.rows()).array()));
    });
    kept.mask2 = draw(drops.down, rows, dim, meter);
    if (y == nullptr) {
        return;
    }
    *y = Kept<S>(meter, rows, dim);
    linear(kept.hidden.rows(), w.down, w.down_bias, [&](Index first, Matrix<C>& block) {
        apply(kept.mask2, drops.down.probability, first, block);
        block += kept.x1.rows().middleRows(first, block.rows()).template cast<C>();
        store(*y, first, block);
    });
}

/// dx holds the gradient of y and then that of kept.x. `attend_backward(dout, dqkv)` is attention's backward pass. The
/// steps of layer_forward() in reverse.
template <class S, class C, class AttendBackward>
void layer_backward(const LayerWeights<C>& w, const LayerWeights<C>& dw, const LayerKept<S>& kept,
                    const LayerDrops& drops, const AttendBackward& attend_backward, Matrix<C>& dx)
{
    const auto dropped = [&](const Kept<std::uint8_t>& mask, double probability) {
        Matrix<C> dy = dx;
        apply(mask, probability, 0, dy);
        return dy;
    };
    {
        const Matrix<C> ddown = dropped(kept.mask2, drops.down.probability);
        const Matrix<C> dup =
            linear_backward(kept.hidden.rows(), w.down, ddown, dw.down, dw.down_bias, [&](Index first, auto& block) {
                block = block.cwiseProduct(gelu_slope<C>(kept.up.rows().middleRows(first, block.rows()).array()));
            });
        const Matrix<C> dnorm = linear_backward(kept.norm2.rows(), w.up, dup, dw.up, dw.up_bias);
        layer_norm_backward(kept.x1.rows(), w.norm2, dnorm, dx, dw.norm2, dw.norm2_bias);
    }
    const Matrix<C> dout_sum = dropped(kept.mask1, drops.out.probability);
    const Matrix<S> dout = linear_backward(kept.o.rows(), w.out, dout_sum, dw.out, dw.out_bias).template cast<S>();
    Matrix<S> dqkv(dout.rows(), w.qkv.cols());
    attend_backward(dout, dqkv);
    const Matrix<C> dnorm =
        linear_backward(kept.norm1.rows(), w.qkv, Matrix<C>(dqkv.template cast<C>()), dw.qkv, dw.qkv_bias);
    layer_norm_backward(kept.x.rows(), w.norm1, dnorm, dx, dw.norm1, dw.norm1_bias);
}

} // namespace gpt
