// The dropout mask: Philox against its published vectors, the mapping of positions, and what the reference does with
// it.
#include "flashomp/dropout.hpp"

#include "accuracy.hpp"
#include "reference_case.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <tuple>
#include <utility>

namespace flashomp {
namespace {

using reference::max_error;
using testing::ReferenceCase;

void expect_words(const PhiloxBlock& block, std::uint32_t a, std::uint32_t b, std::uint32_t c, std::uint32_t d)
{
    EXPECT_EQ(block.word[0], a);
    EXPECT_EQ(block.word[1], b);
    EXPECT_EQ(block.word[2], c);
    EXPECT_EQ(block.word[3], d);
}

// The three philox4x32 10 lines of Random123's known-answer file (DEShawResearch/random123, tests/kat_vectors).
TEST(Philox, GivesThePublishedKnownAnswers)
{
    constexpr std::uint32_t ones = 0xffffffffU;
    expect_words(philox4x32_10({{0, 0, 0, 0}}, {{0, 0}}), 0x6627e8d5U, 0xe169c58dU, 0xbc57ac4cU, 0x9b00dbd8U);
    expect_words(philox4x32_10({{ones, ones, ones, ones}}, {{ones, ones}}), 0x408f276dU, 0x41c83b0eU, 0xa20bc7c6U,
                 0x6d5451fdU);
    expect_words(philox4x32_10({{0x243f6a88U, 0x85a308d3U, 0x13198a2eU, 0x03707344U}}, {{0xa4093822U, 0x299f31d0U}}),
                 0xd16cfe09U, 0x94fdcceb, 0x5001e420U, 0x24126ea1U);
}

TEST(Philox, RunsAtCompileTime)
{
    static_assert(philox4x32_10({{0, 0, 0, 0}}, {{0, 0}}).word[0] == 0x6627e8d5U);
    static_assert(dropout_threshold(0.0) == 0U && dropout_threshold(0.5) == 0x80000000U);
    static_assert(dropout_threshold(0.9999999999999) == 0xffffffffU);
    static_assert(dropout_keep(7, 9, 1, 2, 3, 4, 0U));
}

TEST(Dropout, FourNeighboursShareOneDrawAndEveryPositionHasItsOwnWord)
{
    const PhiloxKey key = dropout_key(42, 7);
    std::set<std::tuple<std::uint32_t, std::uint32_t, std::uint32_t, std::uint32_t>> blocks;
    for (std::uint32_t batch = 0; batch < 3; ++batch) {
        for (std::uint32_t head = 0; head < 5; ++head) {
            for (std::uint32_t i = 0; i < 7; ++i) {
                for (std::uint32_t quad = 0; quad < 4; ++quad) {
                    const PhiloxBlock block = dropout_draws(key, batch, head, i, quad);
                    blocks.insert({block.word[0], block.word[1], block.word[2], block.word[3]});
                    for (std::uint32_t lane = 0; lane < 4; ++lane) {
                        EXPECT_EQ(dropout_keep(42, 7, batch, head, i, 4 * quad + lane, 0x40000000U),
                                  block.word[lane] >= 0x40000000U);
                    }
                }
            }
        }
    }
    EXPECT_EQ(blocks.size(), std::size_t{3 * 5 * 7 * 4});
}

TEST(Dropout, SeedAndOffsetChooseTheMaskWithAllTheirBits)
{
    std::set<std::pair<std::uint32_t, std::uint32_t>> keys;
    for (const std::uint64_t seed : {0ULL, 1ULL, 1ULL << 32U, ~0ULL}) {
        for (const std::uint64_t offset : {0ULL, 1ULL, 1ULL << 32U, ~0ULL}) {
            const PhiloxKey key = dropout_key(seed, offset);
            keys.insert({key.word[0], key.word[1]});
        }
    }
    EXPECT_EQ(keys.size(), 16U);
}

TEST(Dropout, DrawsTheFractionThatWasAskedFor)
{
    ReferenceCase c({2, 3, 1, 113, 203, 4, 4});
    for (const double probability : {0.0, 0.17, 0.5, 0.9}) {
        c.problem.options.dropout = {probability, 1234, 5678};
        const std::vector<std::uint8_t> mask = reference::dropout_mask(c.problem);
        ASSERT_EQ(mask.size(), std::size_t{2 * 3 * 113 * 203});
        const auto dropped = static_cast<double>(std::count(mask.begin(), mask.end(), 0));
        EXPECT_NEAR(dropped / static_cast<double>(mask.size()), probability, 0.01);
    }
}

TEST(Dropout, ScalesWhatItKeepsAndLeavesLseAlone)
{
    ReferenceCase c({2, 4, 4, 5, 6, 3, 6});
    std::fill(c.v.begin(), c.v.end(), 0.0);
    for (std::size_t row = 0; row < std::size_t{2 * 6 * 4}; ++row) {
        c.v[row * 6 + row / 4 % 6] = 1.0; // v is the identity: o is the probabilities
    }
    const reference::ForwardResult plain = reference::forward(c.problem);
    c.problem.options.dropout = {0.25, 3, 4};
    const reference::ForwardResult dropped = reference::forward(c.problem);
    const std::vector<std::uint8_t> mask = reference::dropout_mask(c.problem);
    std::vector<double> expected(plain.o.size());
    for (std::size_t n = 0; n < expected.size(); ++n) { // o is [b, i, h, j], the mask [b, h, i, j]
        const std::size_t b = n / (5 * 4 * 6);
        const std::size_t i = n / (4 * 6) % 5;
        const std::size_t h = n / 6 % 4;
        expected[n] = mask[((b * 4 + h) * 5 + i) * 6 + n % 6] != 0 ? plain.o[n] / 0.75 : 0.0;
    }
    EXPECT_LE(max_error(dropped.o, expected), 1e-15);
    EXPECT_EQ(dropped.lse, plain.lse);
}

} // namespace
} // namespace flashomp
