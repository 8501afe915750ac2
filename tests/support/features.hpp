// Every option of attention as a switch, so that tests can combine them at will.
#pragma once

#include "attention_case.hpp"
#include "masked.hpp"

#include <algorithm>
#include <array>
#include <bitset>
#include <cstdint>
#include <random>
#include <string>

namespace flashomp::testing {

enum class Feature : std::uint8_t {
    top_left,
    bottom_right,
    window,
    softcap,
    alibi,
    bias,
    key_padding,
    sink,
    dropout,
    packed,
    grouped_heads,
    value_head_dim,
    mask,
    block_mask,
};

constexpr std::size_t feature_count = 14;
using Features = std::bitset<feature_count>;

inline Features with(std::initializer_list<Feature> list)
{
    Features features;
    for (const Feature feature : list) {
        features.set(static_cast<std::size_t>(feature));
    }
    return features;
}

inline bool has(const Features& features, Feature feature)
{
    return features[static_cast<std::size_t>(feature)];
}

/// "bottom_right+alibi", for messages.
inline std::string names(const Features& features)
{
    static constexpr std::array<const char*, feature_count> all{
        "top_left", "bottom_right", "window", "softcap",       "alibi",          "bias", "key_padding",
        "sink",     "dropout",      "packed", "grouped_heads", "value_head_dim", "mask", "block_mask"};
    std::string text;
    for (std::size_t i = 0; i < feature_count; ++i) {
        if (features[i]) {
            text += (text.empty() ? "" : "+") + std::string(all.at(i));
        }
    }
    return text.empty() ? "none" : text;
}

/// Whole numbers, as test parameters are drawn.
class Draw {
public:
    explicit Draw(std::uint64_t seed) : random_(seed) {}

    std::int64_t operator()(std::int64_t low, std::int64_t high)
    {
        return std::uniform_int_distribution<std::int64_t>(low, high)(random_);
    }
    bool coin() { return (*this)(0, 1) == 1; }

private:
    std::mt19937_64 random_;
};

/// Masks of any shape, where they are on: of part of the axes, the dense one in bytes or bits.
inline void add_masks(AttentionCase& attention, const Features& features, Draw& draw)
{
    const Shape& all = attention.shape();
    const auto one_or = [&](std::int64_t extent) { return draw.coin() ? 1 : extent; };
    if (has(features, Feature::mask)) {
        const io::Shape extents{one_or(all.batch), one_or(all.heads_q), one_or(all.seqlen_q), all.seqlen_k};
        attention.mask = random_mask(attention.random(), extents, draw(8, 40), 0.3, 0.3, 0.5);
        const bool is_bits = draw.coin();
        if (is_bits) {
            attention.mask = packed_bits(attention.mask);
        }
        attention.options.mask = is_bits ? view_of_bits(attention.mask) : std::as_const(attention.mask).view();
    }
    if (has(features, Feature::block_mask)) {
        const io::Shape extents{one_or(all.batch), one_or(all.heads_q), all.seqlen_q, all.seqlen_k};
        const HostTensor pairs = random_mask(attention.random(), extents, draw(8, 40), 0.3, 0.3, 0.5);
        attention.options.block_mask = BlockMask::from_mask(std::as_const(pairs).view(), draw(16, 40), draw(16, 40));
    }
}

/// A random problem with these options on; every detail of them (sizes, broadcast pattern, lengths) is drawn too.
inline AttentionCase case_with(const Features& features, DType dtype, std::uint64_t seed)
{
    Draw draw(seed);
    Shape shape;
    shape.batch = draw(1, 3);
    shape.heads_kv = draw(1, 2);
    shape.heads_q = shape.heads_kv * (has(features, Feature::grouped_heads) ? draw(2, 3) : 1);
    shape.seqlen_q = draw(1, 70);
    shape.seqlen_k = draw(1, 90);
    shape.head_dim = draw(1, 48);
    shape.head_dim_v = has(features, Feature::value_head_dim) ? draw(1, 72) : shape.head_dim;

    const auto make = [&] {
        if (!has(features, Feature::packed)) {
            return AttentionCase(shape, dtype, seed);
        }
        Lengths lengths;
        for (std::int64_t b = draw(1, 5); b > 0; --b) { // every fourth sequence is empty on one side
            lengths.q.push_back(draw(1, 8) == 1 ? 0 : static_cast<std::int32_t>(draw(1, 60)));
            lengths.k.push_back(draw(1, 8) == 1 ? 0 : static_cast<std::int32_t>(draw(1, 80)));
        }
        return AttentionCase(shape, lengths, dtype, seed);
    };
    AttentionCase attention = make();
    Options& options = attention.options;
    if (has(features, Feature::top_left)) {
        options.causal = Causal::top_left;
    }
    if (has(features, Feature::bottom_right)) {
        options.causal = Causal::bottom_right;
    }
    if (has(features, Feature::window)) {
        options.window = {draw(-1, 40), draw(-1, 40)};
    }
    if (has(features, Feature::softcap)) {
        options.softcap = static_cast<double>(draw(1, 50));
    }
    if (has(features, Feature::alibi)) {
        attention.add_alibi(draw.coin());
    }
    if (has(features, Feature::bias)) {
        const std::array<bool, 4> broadcast{draw.coin(), draw.coin(), draw.coin(), draw(1, 4) == 1};
        attention.add_bias(broadcast, draw.coin() ? DType::float32 : dtype);
    }
    if (has(features, Feature::key_padding)) {
        attention.add_key_padding(draw(1, 5) == 1 ? 1.0 : 0.3);
    }
    if (has(features, Feature::sink)) {
        attention.add_sink();
    }
    if (has(features, Feature::dropout)) {
        attention.add_dropout(draw.coin() ? 0.17 : 0.5);
        if (seed % 3 == 0) { // of a part of a larger call
            options.first_sequence = 2;
            options.first_head = 7;
        }
    }
    add_masks(attention, features, draw);
    return attention;
}

} // namespace flashomp::testing
