#include "schemes.hpp"

#include "flashomp/error.hpp"

#include <fmt/format.h>

namespace flashomp::cost {

std::string Scheme::name() const
{
    if (ranks == 1) {
        return "one rank";
    }
    const char* const cut = layout == Layout::zigzag ? "zigzag" : "contiguous";
    if (exchanging == Exchanging::gather) {
        return fmt::format("all-gather, {}", cut);
    }
    if (is_ulysses()) {
        return "Ulysses";
    }
    return heads_ranks == 1 ? fmt::format("ring, {}", cut)
                            : fmt::format("Ulysses {} x ring {}, {}", heads_ranks, places(), cut);
}

std::vector<Scheme> schemes(const Shape& shape, std::int64_t ranks)
{
    if (ranks == 1) {
        return {Scheme{}};
    }
    std::int64_t group = 0;
    for (std::int64_t divisor = 2; divisor < ranks && divisor <= shape.heads_q; ++divisor) {
        if (ranks % divisor == 0 && (group == 0 || shape.heads_kv % divisor == 0)) {
            group = divisor;
        }
    }
    std::vector<Scheme> all;
    for (const Layout layout : {Layout::contiguous, Layout::zigzag}) {
        all.push_back({Exchanging::ring, layout, ranks, 1});
        all.push_back({Exchanging::gather, layout, ranks, 1});
        if (group > 0) {
            all.push_back({Exchanging::ring, layout, ranks, group});
        }
    }
    all.push_back({Exchanging::ring, Layout::contiguous, ranks, ranks});
    return all;
}

void require_shareable(const Shape& shape, std::int64_t ranks)
{
    if (ranks < 1 || ranks > most_ranks) {
        throw Error(fmt::format("ranks was {}; allowed are 1 to {}.", ranks, most_ranks));
    }
    if (shape.blocks_percent > 0 || shape.latent || shape.is_cache()) {
        throw Error(
            fmt::format("shape was '{}'; with ranks, allowed are shapes without _blocks, _latent, _page, _float8 "
                        "and _int8.",
                        shape.name()));
    }
}

Heads heads_of(const Shape& shape, std::int64_t member, std::int64_t members)
{
    const std::int64_t begin = member * shape.heads_q / members;
    const std::int64_t end = (member + 1) * shape.heads_q / members;
    if (begin == end) {
        return {};
    }
    const std::int64_t group = shape.heads_q / shape.heads_kv;
    const std::int64_t key_heads = (end - 1) / group - begin / group + 1;
    return {static_cast<double>(end - begin), static_cast<double>(key_heads)};
}

} // namespace flashomp::cost
