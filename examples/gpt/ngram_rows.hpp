// Embeddings of n-grams: what the last tokens are together, beside what the last one is. A token looks up a row for
// each n from 2 on, by a hash of the n tokens that end at it, so that frequent n-grams need not be learnt by the layers
// (hash embeddings: Svenstrup et al. 2017; of n-grams in language models: Cheng et al. 2026, "Engram").
#pragma once

#include "parameters.hpp"
#include "random.hpp"

#include <cstdint>
#include <span>

namespace gpt {

/// Calls visit(token, row) for each n-gram that ends at a token: row is that of the table. Sequences of `seqlen` tokens
/// know nothing of each other; `before` is what stands before the tokens, where they go on one sequence.
template <class Visit>
void for_each_ngram(const ModelShape& shape, std::span<const std::int32_t> tokens, Index seqlen,
                    std::span<const std::int32_t> before, const Visit& visit)
{
    const auto behind = static_cast<Index>(before.size());
    for (Index i = 0; i < static_cast<Index>(tokens.size()); ++i) {
        const Index past = i % seqlen + behind; // tokens of the sequence before this one
        std::uint64_t hash = 0;
        for (Index n = 1; n <= std::min(shape.ngrams, past + 1); ++n) {
            const Index at = i - (n - 1);
            const std::int32_t token =
                at >= 0 ? tokens[static_cast<std::size_t>(at)] : before[static_cast<std::size_t>(behind + at)];
            hash = mix(hash ^ static_cast<std::uint64_t>(token));
            if (n >= 2) {
                const auto rows = static_cast<std::uint64_t>(shape.hash_rows);
                visit(i, (n - 2) * shape.hash_rows + static_cast<Index>(hash % rows));
            }
        }
    }
}

/// Adds to the embedding x of each token those of the n-grams that end at it.
template <class C>
void add_ngrams(const ModelShape& shape, std::span<const std::int32_t> tokens, Index seqlen,
                std::span<const std::int32_t> before, const Rows<C>& table, Matrix<C>& x)
{
    for_each_ngram(shape, tokens, seqlen, before, [&](Index token, Index row) { x.row(token) += table.row(row); });
}

} // namespace gpt
