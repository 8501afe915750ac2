#include "ngram.hpp"

#include <algorithm>
#include <cmath>

namespace gpt {

namespace {

constexpr unsigned token_bits = 16;

} // namespace

NGram::NGram(std::span<const Tokens::Id> text, int order, int vocabulary)
    : order_(order), vocabulary_(vocabulary), levels_(static_cast<std::size_t>(order))
{
    // places[i]: the index of the n-gram that ends at token i, for the n of the level; −1: the text begins too late.
    std::vector<std::int64_t> shorter(text.size(), 0); // n = 0: the one empty n-gram
    std::vector<std::vector<std::int64_t>> suffixes;   // of each level's n-grams: the index without the first token
    for (std::size_t n = 1; n <= levels_.size(); ++n) {
        Level& level = levels_[n - 1];
        std::vector<std::int64_t> places(text.size(), -1);
        const auto key_at = [&](std::size_t i) {
            const std::uint64_t prefix = n == 1 ? 0 : static_cast<std::uint64_t>(shorter[i - 1]);
            return prefix << token_bits | text[i];
        };
        for (std::size_t i = n - 1; i < text.size(); ++i) {
            level.keys.push_back(key_at(i));
        }
        std::sort(level.keys.begin(), level.keys.end());
        level.keys.erase(std::unique(level.keys.begin(), level.keys.end()), level.keys.end());
        level.counts.assign(level.keys.size(), 0);
        std::vector<std::int64_t> suffix(level.keys.size(), -1);
        for (std::size_t i = n - 1; i < text.size(); ++i) {
            const auto found = std::lower_bound(level.keys.begin(), level.keys.end(), key_at(i));
            places[i] = found - level.keys.begin();
            const auto index = static_cast<std::size_t>(places[i]);
            suffix[index] = shorter[i];
            ++level.counts[index];
        }
        suffixes.push_back(std::move(suffix));
        shorter = std::move(places);
    }
    // Below the highest order: how many different tokens stand before it. A level's n-grams are those, once each.
    for (std::size_t n = levels_.size(); n-- > 1;) {
        std::fill(levels_[n - 1].counts.begin(), levels_[n - 1].counts.end(), 0U);
        for (const std::int64_t index : suffixes[n]) {
            ++levels_[n - 1].counts[static_cast<std::size_t>(index)];
        }
    }
    for (std::size_t n = 1; n <= levels_.size(); ++n) {
        estimate(levels_[n - 1], n == 1 ? 1 : levels_[n - 2].keys.size());
    }
}

void NGram::estimate(Level& level, std::size_t contexts)
{
    std::array<double, 5> with = {}; // n-grams with a count of 1, 2, 3, 4
    for (const std::uint32_t count : level.counts) {
        with[std::min<std::size_t>(count, 4)] += count <= 4 ? 1 : 0;
    }
    const double y = with[1] / std::max(1.0, with[1] + 2 * with[2]);
    for (std::size_t i = 0; i < 3; ++i) {
        const double count = static_cast<double>(i) + 1;
        const double discount = count - (count + 1) * y * with[i + 2] / std::max(1.0, with[i + 1]);
        // Of a text too small for the estimate: half of the smallest count.
        level.discounts[i] = discount > 0 && discount < count ? discount : 0.5;
    }
    level.totals.assign(contexts, 0);
    level.gammas.assign(contexts, 0);
    for (std::size_t i = 0; i < level.keys.size(); ++i) {
        const auto context = static_cast<std::size_t>(level.keys[i] >> token_bits);
        level.totals[context] += level.counts[i];
        if (level.counts[i] > 0) {
            level.gammas[context] += level.discounts[std::min<std::size_t>(level.counts[i], 3) - 1];
        }
    }
    for (std::size_t i = 0; i < contexts; ++i) {
        level.gammas[i] = level.totals[i] == 0 ? 1 : level.gammas[i] / static_cast<double>(level.totals[i]);
    }
}

std::int64_t NGram::Level::find(std::uint64_t prefix, Tokens::Id token) const
{
    const std::uint64_t key = prefix << token_bits | token;
    const auto found = std::lower_bound(keys.begin(), keys.end(), key);
    return found != keys.end() && *found == key ? found - keys.begin() : -1;
}

double NGram::probability(std::span<const Tokens::Id> context, Tokens::Id token) const
{
    double p = 1.0 / vocabulary_;
    for (std::size_t n = 1; n <= levels_.size() && n - 1 <= context.size(); ++n) {
        std::int64_t h = 0; // the index of the last n − 1 tokens
        for (std::size_t i = 0; i + 1 < n && h >= 0; ++i) {
            h = levels_[i].find(static_cast<std::uint64_t>(h), context[context.size() - (n - 1) + i]);
        }
        if (h < 0) {
            break; // a longer context is not there, either
        }
        const Level& level = levels_[n - 1];
        const auto at = static_cast<std::size_t>(h);
        const std::int64_t found = level.find(static_cast<std::uint64_t>(h), token);
        const std::uint32_t count = found < 0 ? 0 : level.counts[static_cast<std::size_t>(found)];
        const double discounted =
            count == 0 ? 0 : static_cast<double>(count) - level.discounts[std::min<std::size_t>(count, 3) - 1];
        p = (level.totals[at] == 0 ? 0 : discounted / static_cast<double>(level.totals[at])) + level.gammas[at] * p;
    }
    return p;
}

std::vector<double> NGram::losses(std::span<const Tokens::Id> text) const
{
    std::vector<double> losses;
    for (std::size_t i = 1; i < text.size(); ++i) {
        const std::size_t most = std::min(i, static_cast<std::size_t>(order_ - 1));
        losses.push_back(-std::log(probability(text.subspan(i - most, most), text[i])));
    }
    return losses;
}

} // namespace gpt
