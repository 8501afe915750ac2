#include "parameters.hpp"

#include "random.hpp"

namespace gpt {

std::vector<float> alibi_slopes(Index heads)
{
    std::vector<float> slopes;
    for (Index head = 1; head <= heads; ++head) {
        slopes.push_back(std::exp2(-8.0F * static_cast<float>(head) / static_cast<float>(heads)));
    }
    return slopes;
}

Layout::Layout(const ModelShape& shape)
{
    add("embedding.tokens", shape.vocabulary, shape.dim, true);
    add("embedding.positions", shape.seqlen, shape.dim, false);
    for (Index i = 0; i < shape.layers; ++i) {
        const std::string layer = "layer." + std::to_string(i) + ".";
        add(layer + "attention.norm.weight", 1, shape.dim, false);
        add(layer + "attention.norm.bias", 1, shape.dim, false);
        add(layer + "attention.qkv.weight", shape.dim, shape.attention_width(), true);
        add(layer + "attention.qkv.bias", 1, shape.attention_width(), false);
        add(layer + "attention.out.weight", shape.dim, shape.dim, true);
        add(layer + "attention.out.bias", 1, shape.dim, false);
        add(layer + "mlp.norm.weight", 1, shape.dim, false);
        add(layer + "mlp.norm.bias", 1, shape.dim, false);
        add(layer + "mlp.up.weight", shape.dim, shape.hidden(), true);
        add(layer + "mlp.up.bias", 1, shape.hidden(), false);
        add(layer + "mlp.down.weight", shape.hidden(), shape.dim, true);
        add(layer + "mlp.down.bias", 1, shape.dim, false);
    }
    last_norm_ = places_.size();
    add("norm.weight", 1, shape.dim, false);
    add("norm.bias", 1, shape.dim, false);
    has_ngrams_ = shape.ngrams >= 2;
    if (has_ngrams_) { // behind all others: see dense_size()
        add("embedding.ngrams", (shape.ngrams - 1) * shape.hash_rows, shape.dim, false);
    }
}

namespace {

/// Of a position and a column: sines in even columns, cosines in odd ones.
double sinusoid(Index position, Index column, Index columns)
{
    const double exponent = static_cast<double>(2 * (column / 2)) / static_cast<double>(columns);
    const double angle = static_cast<double>(position) * std::pow(10000.0, -exponent);
    return column % 2 == 0 ? std::sin(angle) : std::cos(angle);
}

} // namespace

void Layout::add(const std::string& name, Index rows, Index columns, bool is_matrix)
{
    places_.push_back({name, size_, rows, columns, is_matrix});
    size_ += rows * columns;
}

template <class C>
Numbers<C> initial_weights(const Layout& layout, Index layers, std::uint64_t seed)
{
    constexpr double gain = 0.7;
    constexpr double sigma_tokens = 0.1;
    constexpr double sigma_positions = 0.02;
    Numbers<C> values(static_cast<std::size_t>(layout.size()));
    for (const Place& place : layout.places()) {
        const auto ends_with = [&](const char* text) { return place.name.ends_with(text); };
        const bool writes_residual = ends_with("attention.out.weight") || ends_with("mlp.down.weight");
        const double residuals = writes_residual ? 2.0 * static_cast<double>(layers) : 1.0;
        const double sigma = place.name == "embedding.tokens"
                                 ? sigma_tokens
                                 : gain / std::sqrt(static_cast<double>(place.rows) * residuals);
        for (Index i = place.first; i < place.first + place.rows * place.columns; ++i) {
            double value = 0;
            if (ends_with("norm.weight")) {
                value = 1;
            } else if (ends_with("positions")) {
                value = sigma_positions * std::numbers::sqrt2 *
                        sinusoid((i - place.first) / place.columns, (i - place.first) % place.columns, place.columns);
            } else if (!ends_with(".bias") && !ends_with("ngrams")) {
                value = sigma * random_normal(seed, Stream::weights, static_cast<std::uint64_t>(i));
            }
            values[static_cast<std::size_t>(i)] = static_cast<C>(value);
        }
    }
    return values;
}

template Numbers<float> initial_weights(const Layout&, Index, std::uint64_t);
template Numbers<double> initial_weights(const Layout&, Index, std::uint64_t);

} // namespace gpt
