#include "model.hpp"

#include "head.hpp"
#include "ngram_rows.hpp"
#include "products.hpp"

#include <algorithm>
#include <chrono>
#include <numeric>

namespace gpt {

namespace {

/// Adds the time it lives to `seconds`.
class Clock {
public:
    explicit Clock(double& seconds) : seconds_(seconds) {}
    ~Clock() { seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }
    Clock(const Clock&) = delete;
    Clock& operator=(const Clock&) = delete;

private:
    double& seconds_;
    std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

} // namespace

template <class S>
Model<S>::Model(const ModelShape& shape, std::uint64_t seed, Attention<S>& attention, Recompute recompute)
    : shape_(shape), layout_(shape), slopes_(shape.alibi ? alibi_slopes(shape.heads) : std::vector<float>()),
      weights_(initial_weights<C>(layout_, shape.layers, seed)), gradients_(weights_.size()), attention_(attention),
      recompute_(recompute)
{
    keep_products_in_their_thread();
}

template <class S>
Heads Model<S>::heads(Index rows) const
{
    const Index seqlen = std::min(rows, shape_.seqlen);
    return {rows / seqlen, seqlen, shape_.heads, shape_.heads_kv, shape_.head_dim(), slopes_};
}

template <class S>
void Model<S>::attention_forward(LayerKept<S>& kept, const flashomp::Dropout& dropout, Meter& meter)
{
    const Clock clock(attention_seconds_);
    attention_.forward(heads(kept.x.rows().rows()), kept.qkv.rows(), dropout, kept.o.rows(), kept.attention, meter);
}

template <class S>
Matrix<typename Model<S>::C> Model<S>::forward(const Batch& batch, const Drops& drops, bool keeps)
{
    layers_.clear(); // what a pass that failed has left
    kept_.restart();
    Matrix<C> embedded =
        embedding<C>(batch.tokens, 0, shape_.seqlen, layout_.tokens(weights_), layout_.positions(weights_));
    add_ngrams(shape_, batch.tokens, shape_.seqlen, {}, layout_.ngrams(weights_), embedded);
    mask_ = draw(drops.at(0), embedded.rows(), embedded.cols(), other_);
    apply(mask_, drops.probability, 0, embedded);
    Kept<S> x(kept_, embedded.rows(), embedded.cols());
    x.rows() = embedded.template cast<S>();
    embedded.resize(0, 0);

    for (Index i = 0; i < shape_.layers; ++i) {
        const LayerDrops layer_drops = drops_of(drops, i);
        LayerKept<S> layer;
        layer.x = std::move(x);
        layer_forward(
            layout_.layer(weights_, i), layer, layer_drops, kept_,
            [&](const Rows<S>&, const Rows<S>&, AttentionKept<S>&) {
                attention_forward(layer, layer_drops.attention, kept_);
            },
            &x);
        if (!keeps) {
            continue;
        }
        if (recompute_ == Recompute::layer) {
            layer.drop_all_but_input();
        } else if (recompute_ == Recompute::attention) {
            layer.attention.drop();
        }
        layers_.push_back(std::move(layer));
    }
    last_ = std::move(x);
    Matrix<C> normal(last_.rows().rows(), shape_.dim);
    layer_norm(last_.rows(), layout_.last_norm(weights_), layout_.last_norm_bias(weights_), normal);
    return normal;
}

template <class S>
void Model<S>::clear_gradients()
{
    std::fill_n(gradients_.begin(), layout_.dense_size(), C(0));
    Rows<C> ngrams = layout_.ngrams(gradients_);
    for (const Index row : touched_) {
        ngrams.row(row).setZero();
    }
    touched_.clear();
}

template <class S>
void Model<S>::embed_backward(const Batch& batch, const Matrix<C>& dx)
{
    embedding_backward(batch.tokens, shape_.seqlen, dx, layout_.tokens(gradients_), layout_.positions(gradients_));
    Rows<C> ngrams = layout_.ngrams(gradients_);
    for_each_ngram(shape_, batch.tokens, shape_.seqlen, {}, [&](Index token, Index row) {
        touched_.push_back(row);
        ngrams.row(row) += dx.row(token);
    });
    std::sort(touched_.begin(), touched_.end());
    touched_.erase(std::unique(touched_.begin(), touched_.end()), touched_.end());
}

template <class S>
double Model<S>::train(const Batch& batch, const Drops& drops)
{
    clear_gradients();
    std::vector<double> losses;
    Matrix<C> dx = Matrix<C>::Zero(static_cast<Index>(batch.tokens.size()), shape_.dim);
    {
        const Matrix<C> normal = forward(batch, drops, true);
        Matrix<C> dnormal;
        Rows<C> dtable = layout_.tokens(gradients_);
        losses = cross_entropy(normal, layout_.tokens(weights_), batch.targets, &dnormal, &dtable);
        layer_norm_backward(last_.rows(), layout_.last_norm(weights_), dnormal, dx, layout_.last_norm(gradients_),
                            layout_.last_norm_bias(gradients_));
        last_.drop();
    }
    for (Index i = shape_.layers - 1; i >= 0; --i) {
        LayerKept<S>& layer = layers_.back();
        const LayerDrops layer_drops = drops_of(drops, i);
        const LayerWeights<C> weights = layout_.layer(weights_, i);
        if (recompute_ == Recompute::layer) {
            layer_forward<S, C>(
                weights, layer, layer_drops, kept_,
                [&](const Rows<S>&, const Rows<S>&, AttentionKept<S>&) {
                    attention_forward(layer, layer_drops.attention, kept_);
                },
                nullptr);
        } else if (recompute_ == Recompute::attention) {
            attention_forward(layer, layer_drops.attention, kept_);
        }
        const auto attend_backward = [&](const Matrix<S>& dout, Matrix<S>& dqkv) {
            const Clock clock(attention_seconds_);
            attention_.backward(heads(dout.rows()), layer.qkv.rows(), layer.o.rows(), layer.attention,
                                Rows<S>(const_cast<S*>(dout.data()), dout.rows(), dout.cols()), layer_drops.attention,
                                Rows<S>(dqkv.data(), dqkv.rows(), dqkv.cols()));
        };
        layer_backward(weights, layout_.layer(gradients_, i), layer, layer_drops, attend_backward, dx);
        layers_.pop_back();
    }
    apply(mask_, drops.probability, 0, dx);
    mask_.drop();
    embed_backward(batch, dx);
    return std::accumulate(losses.begin(), losses.end(), 0.0) / static_cast<double>(losses.size());
}

template <class S>
std::vector<double> Model<S>::evaluate(const Batch& batch)
{
    const Matrix<C> normal = forward(batch, {}, false);
    last_.drop();
    return cross_entropy<C>(normal, layout_.tokens(weights_), batch.targets, nullptr, nullptr);
}

template class Model<float>;
template class Model<bfloat16>;
template class Model<double>;

} // namespace gpt
