// The text as a model sees it: tokens for training, validation and test, and batches of them.
#pragma once

#include "corpus.hpp"
#include "matrix.hpp"
#include "random.hpp"
#include "tokens.hpp"

#include "flashomp/error.hpp"

#include <cstdint>
#include <vector>

#include <fmt/format.h>

namespace gpt {

struct Text {
    std::vector<Tokens::Id> train, validation, test;
    std::int64_t train_bytes = 0, validation_bytes = 0;
    std::uint64_t hash = 0; ///< of the training text
};

/// Throws flashomp::Error where the text is too short for one sequence.
[[nodiscard]] inline Text tokenised(const Corpus& corpus, const Tokens& tokens, Index seqlen)
{
    Text text{tokens.encode(corpus.train),
              tokens.encode(corpus.validation),
              tokens.encode(corpus.test),
              static_cast<std::int64_t>(corpus.train.size()),
              static_cast<std::int64_t>(corpus.validation.size()),
              fnv1a(corpus.train)};
    if (static_cast<Index>(text.train.size()) < seqlen + 1) {
        throw flashomp::Error(fmt::format("--data has {} tokens for training; --seqlen {} needs at least {}.",
                                          text.train.size(), seqlen, seqlen + 1));
    }
    if (text.validation.size() < 2) {
        throw flashomp::Error(fmt::format("--data has {} tokens for validation, which are the last twentieth of each "
                                          "file, from a line's beginning; at least 2 are needed.",
                                          text.validation.size()));
    }
    return text;
}

/// Sequences of one step: tokens, and the tokens that follow each of them.
struct Sequences {
    std::vector<std::int32_t> tokens, targets;

    void add(const std::vector<Tokens::Id>& text, std::size_t first, std::size_t length)
    {
        const auto at = [&](std::size_t i) { return text.begin() + static_cast<std::ptrdiff_t>(i); };
        tokens.insert(tokens.end(), at(first), at(first + length));
        targets.insert(targets.end(), at(first + 1), at(first + length + 1));
    }
};

/// Sequences that begin anywhere in the training text. They depend on the seed and the step alone.
[[nodiscard]] inline Sequences training_batch(const Text& text, Index batch, Index seqlen, std::uint64_t seed,
                                              std::int64_t step)
{
    Sequences sequences;
    const auto starts = static_cast<std::uint64_t>(static_cast<Index>(text.train.size()) - seqlen);
    for (Index i = 0; i < batch; ++i) {
        const std::uint64_t draw = random_bits(seed, Stream::batches, static_cast<std::uint64_t>(step * batch + i));
        sequences.add(text.train, static_cast<std::size_t>(draw % starts), static_cast<std::size_t>(seqlen));
    }
    return sequences;
}

} // namespace gpt
