// Masks of any shape for tests: random ones, dense and in blocks.
#pragma once

#include "attention_case.hpp"

#include "flashomp/block_mask.hpp"

#include <cstdint>
#include <random>

namespace flashomp::testing {

/// A mask [batch, heads, queries, keys] whose blocks of `block` pairs a side are hidden, whole or random, in about
/// these parts; in random ones a pair is kept with probability `kept`.
inline HostTensor random_mask(std::mt19937_64& random, const io::Shape& shape, std::int64_t block, double hidden,
                              double whole, double kept)
{
    HostTensor mask(DType::boolean, shape);
    auto* const pairs = static_cast<std::uint8_t*>(mask.data());
    std::uniform_real_distribution<double> uniform(0.0, 1.0);
    for (std::int64_t head = 0; head < shape[0] * shape[1]; ++head) {
        for (std::int64_t i0 = 0; i0 < shape[2]; i0 += block) {
            for (std::int64_t j0 = 0; j0 < shape[3]; j0 += block) {
                const double kind = uniform(random);
                for (std::int64_t i = i0; i < std::min(i0 + block, shape[2]); ++i) {
                    for (std::int64_t j = j0; j < std::min(j0 + block, shape[3]); ++j) {
                        const bool keeps = kind >= hidden && (kind < hidden + whole || uniform(random) < kept);
                        pairs[(head * shape[2] + i) * shape[3] + j] = keeps ? 1 : 0;
                    }
                }
            }
        }
    }
    return mask;
}

/// A boolean mask as DType::bits.
inline HostTensor packed_bits(const HostTensor& mask)
{
    io::Shape shape = mask.shape();
    const std::int64_t keys = shape[3];
    const std::int64_t bytes = (keys + 7) / 8;
    shape[3] = bytes;
    HostTensor packed(DType::boolean, shape); // the view says what they are
    const auto* const from = static_cast<const std::uint8_t*>(mask.data());
    auto* const to = static_cast<std::uint8_t*>(packed.data());
    std::fill_n(to, packed.bytes(), std::uint8_t{0});
    for (std::int64_t row = 0; row < mask.elements() / std::max<std::int64_t>(1, keys); ++row) {
        for (std::int64_t j = 0; j < keys; ++j) {
            const unsigned bit = from[row * keys + j] != 0 ? 1U << static_cast<unsigned>(j % 8) : 0U;
            to[row * bytes + j / 8] = static_cast<std::uint8_t>(to[row * bytes + j / 8] | bit);
        }
    }
    return packed;
}

inline ConstTensorView view_of_bits(const HostTensor& packed)
{
    ConstTensorView view = packed.view();
    view.dtype = DType::bits;
    return view;
}

} // namespace flashomp::testing
