// Text out of a trained model, a token at a time, with a key/value cache for each layer.
#pragma once

#include "attention_flash.hpp"
#include "model.hpp"
#include "ngram_rows.hpp"
#include "random.hpp"
#include "tokens.hpp"

#include "flashomp/cache.hpp"

#include <cmath>
#include <span>
#include <vector>

namespace gpt {

/// The keys and values of the tokens so far, and the scores of the next one.
template <class S>
class Generator {
    using C = Number<S>;

public:
    Generator(Model<S>& model, const flashomp::Options& where)
        : model_(model), where_(where),
          slopes_(model.shape().alibi ? alibi_slopes(model.shape().heads) : std::vector<float>())
    {
        const ModelShape& shape = model.shape();
        const auto size = static_cast<std::size_t>(shape.seqlen * shape.heads_kv * shape.head_dim());
        caches_.resize(static_cast<std::size_t>(shape.layers));
        for (Cache& cache : caches_) {
            cache.k.resize(size);
            cache.v.resize(size);
        }
    }

    /// Tokens that there is still room for: learned positions end at seqlen.
    [[nodiscard]] Index room() const { return model_.shape().seqlen - length_; }

    void restart()
    {
        length_ = 0;
        fed_.clear();
    }

    /// Appends tokens, at least one and at most room(), and returns the scores of what may follow, [vocabulary].
    [[nodiscard]] Matrix<C> feed(std::span<const std::int32_t> tokens)
    {
        const Layout& layout = model_.layout();
        const auto rows = static_cast<Index>(tokens.size());
        Meter meter;
        Kept<S> x(meter, rows, model_.shape().dim);
        Matrix<C> embedded =
            embedding<C>(tokens, length_, rows, layout.tokens(model_.weights()), layout.positions(model_.weights()));
        add_ngrams(model_.shape(), tokens, rows, fed_, layout.ngrams(model_.weights()), embedded);
        x.rows() = embedded.template cast<S>();
        for (Index i = 0; i < model_.shape().layers; ++i) {
            LayerKept<S> layer;
            layer.x = std::move(x);
            const auto attend = [&](const Rows<S>& qkv, const Rows<S>& o, AttentionKept<S>&) {
                this->attend(i, qkv, o);
            };
            layer_forward(layout.layer(model_.weights(), i), layer, {}, meter, attend, &x);
        }
        length_ += rows;
        fed_.insert(fed_.end(), tokens.begin(), tokens.end());
        Matrix<C> last(1, model_.shape().dim);
        layer_norm(x.rows().bottomRows(1), layout.last_norm(model_.weights()), layout.last_norm_bias(model_.weights()),
                   last);
        return last * layout.tokens(model_.weights()).transpose();
    }

private:
    struct Cache {
        std::vector<S> k, v; ///< [1, seqlen, heads_kv, head_dim]
    };

    /// append() writes the new keys and values behind those that are there; forward() reads all of them.
    void attend(Index layer, const Rows<S>& qkv, const Rows<S>& o)
    {
        const ModelShape& shape = model_.shape();
        const Heads heads{1, qkv.rows(), shape.heads, shape.heads_kv, shape.head_dim(), slopes_};
        const auto view = [&](Index column, Index count) { return heads_view(qkv, column, 1, count, heads.head_dim); };
        Cache& cache = caches_[static_cast<std::size_t>(layer)];
        const auto cached = [&](std::vector<S>& values) {
            return flashomp::TensorView::contiguous(values.data(), dtype_of<S>,
                                                    {1, shape.seqlen, shape.heads_kv, heads.head_dim});
        };
        std::int32_t length = static_cast<std::int32_t>(length_);
        flashomp::Options options = where_;
        options.causal = flashomp::Causal::bottom_right;
        options.cache_seqlens = flashomp::ConstTensorView::contiguous(&length, flashomp::DType::int32, {1});
        flashomp::append({.k = view(heads.key_column(), heads.heads_kv),
                          .v = view(heads.value_column(), heads.heads_kv),
                          .k_cache = cached(cache.k),
                          .v_cache = cached(cache.v)},
                         options);
        length += static_cast<std::int32_t>(qkv.rows());
        options.alibi_slopes = slopes_view(heads);
        std::vector<float> lse(static_cast<std::size_t>(qkv.rows() * heads.heads));
        flashomp::forward(
            {view(0, heads.heads), cached(cache.k), cached(cache.v), heads_view(o, 0, 1, heads.heads, heads.head_dim),
             flashomp::TensorView::contiguous(lse.data(), flashomp::DType::float32, {1, heads.heads, qkv.rows()})},
            options);
    }

    Model<S>& model_;
    flashomp::Options where_;
    std::vector<float> slopes_;
    std::vector<Cache> caches_;
    std::vector<std::int32_t> fed_; ///< tokens since the start, whose ends n-grams need
    Index length_ = 0;
};

/// `count` tokens after the prompt, each drawn from softmax(scores/temperature). Of a prompt the last seqlen tokens are
/// read. When the positions are used up, the model reads the last half of them again and goes on.
template <class S>
std::vector<Tokens::Id> sample(Model<S>& model, const flashomp::Options& where, std::span<const Tokens::Id> prompt,
                               Index count, double temperature, std::uint64_t seed)
{
    Generator<S> generator(model, where);
    const auto whole = static_cast<std::size_t>(model.shape().seqlen);
    std::vector<std::int32_t> all(prompt.begin(), prompt.end());
    std::size_t fed = all.size() > whole ? all.size() - whole : 0;
    std::vector<Tokens::Id> drawn;
    while (static_cast<Index>(drawn.size()) < count) {
        if (generator.room() < static_cast<Index>(all.size() - fed)) {
            generator.restart();
            fed = all.size() - std::max<std::size_t>(1, whole / 2); // more than seqlen tokens are there
        }
        const auto scores = generator.feed(std::span(all).subspan(fed)).row(0).template cast<double>().eval();
        fed = all.size();
        const Eigen::ArrayXd weights = ((scores.array() - scores.maxCoeff()) / temperature).exp();
        double rest = random_uniform(seed, Stream::sampling, drawn.size()) * weights.sum();
        Index token = 0;
        while (token + 1 < weights.size() && rest >= weights(token)) {
            rest -= weights(token++);
        }
        drawn.push_back(static_cast<Tokens::Id>(token));
        all.push_back(static_cast<std::int32_t>(token));
    }
    return drawn;
}

} // namespace gpt
