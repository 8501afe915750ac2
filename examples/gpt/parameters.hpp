// The weights of a model: one array of numbers, in which every weight has a name and a place. Gradients and the two
// moments of AdamW are arrays of the same layout.
#pragma once

#include "matrix.hpp"

#include <string>
#include <vector>

namespace gpt {

/// Sizes of a model.
struct ModelShape {
    Index vocabulary = 256, seqlen = 512, layers = 4, heads = 4, heads_kv = 4, dim = 128;
    bool alibi = false;
    Index ngrams = 0;    ///< the longest n-gram that has an embedding; below 2: none has
    Index hash_rows = 1; ///< embeddings for each n

    [[nodiscard]] Index head_dim() const { return dim / heads; }
    [[nodiscard]] Index attention_width() const { return (heads + 2 * heads_kv) * head_dim(); }
    [[nodiscard]] Index hidden() const { return 4 * dim; } ///< of the MLP
};

/// ALiBi's slopes of so many heads, 2^(−8·h/heads) for h = 1, 2, … (Press et al. 2022).
[[nodiscard]] std::vector<float> alibi_slopes(Index heads);

/// Where one weight is.
struct Place {
    std::string name; ///< as in checkpoints: "layer.0.attention.qkv.weight"
    Index first = 0, rows = 0, columns = 0;
    bool is_matrix = false; ///< weight decay is for matrices: not for biases, norms and embeddings but of tokens
};

/// The weights of one layer, or their gradients. Matrices are [in, out], the others [1, width].
template <class C>
struct LayerWeights {
    Rows<C> norm1, norm1_bias, qkv, qkv_bias, out, out_bias, norm2, norm2_bias, up, up_bias, down, down_bias;
};

/// What a shape has, in order.
class Layout {
public:
    explicit Layout(const ModelShape& shape);

    [[nodiscard]] const std::vector<Place>& places() const { return places_; }
    [[nodiscard]] Index size() const { return size_; }
    /// What stands before the embeddings of n-grams, of which a step reaches a few rows.
    [[nodiscard]] Index dense_size() const { return has_ngrams_ ? places_.back().first : size_; }

    template <class C>
    [[nodiscard]] Rows<C> at(Numbers<C>& values, std::size_t index) const
    {
        const Place& place = places_[index];
        return {values.data() + place.first, place.rows, place.columns};
    }
    template <class C>
    [[nodiscard]] Rows<C> tokens(Numbers<C>& values) const
    {
        return at(values, 0);
    }
    template <class C>
    [[nodiscard]] Rows<C> positions(Numbers<C>& values) const
    {
        return at(values, 1);
    }
    template <class C>
    [[nodiscard]] Rows<C> last_norm(Numbers<C>& values) const
    {
        return at(values, last_norm_);
    }
    template <class C>
    [[nodiscard]] Rows<C> last_norm_bias(Numbers<C>& values) const
    {
        return at(values, last_norm_ + 1);
    }
    /// [(ngrams − 1)·hash_rows, dim], or no rows.
    template <class C>
    [[nodiscard]] Rows<C> ngrams(Numbers<C>& values) const
    {
        return has_ngrams_ ? at(values, places_.size() - 1) : Rows<C>(values.data(), 0, places_.front().columns);
    }
    template <class C>
    [[nodiscard]] LayerWeights<C> layer(Numbers<C>& values, Index index) const
    {
        const auto first = 2 + static_cast<std::size_t>(index) * 12;
        const auto rows = [&](std::size_t i) { return at(values, first + i); };
        return {rows(0), rows(1), rows(2), rows(3), rows(4),  rows(5),
                rows(6), rows(7), rows(8), rows(9), rows(10), rows(11)};
    }

private:
    void add(const std::string& name, Index rows, Index columns, bool is_matrix);

    std::vector<Place> places_;
    Index size_ = 0;
    std::size_t last_norm_ = 0; ///< its place
    bool has_ngrams_ = false;
};

/// The weights that training begins with: matrices normal with σ = 0.7/√inputs, those that write to the residual stream
/// with σ/√(2·layers) (Radford et al. 2019), embeddings of tokens with σ = 0.1, norms 1, biases and embeddings of
/// n-grams 0. GPT-2's σ of 0.02 is that of 1200 inputs: a narrow model would learn for hundreds of steps to speak up.
/// Embeddings of positions begin as sines and cosines of 10000^(−2i/dim) a position (Vaswani et al. 2017), with
/// σ = 0.02: a head that looks one token back is then a rotation away, where random positions have to be learnt one by
/// one.
template <class C>
[[nodiscard]] Numbers<C> initial_weights(const Layout& layout, Index layers, std::uint64_t seed);

} // namespace gpt
