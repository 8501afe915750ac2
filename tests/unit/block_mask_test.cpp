// BlockMask: what its makers keep, pair by pair, its two orders, and what it refuses.
#include "flashomp/block_mask.hpp"

#include "support/masked.hpp"

#include "flashomp/attention.hpp"
#include "flashomp/error.hpp"

#include <functional>
#include <gtest/gtest.h>
#include <string>

namespace flashomp::testing {
namespace {

using Predicate = std::function<bool(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j)>;

void expect_keeps(const BlockMask& mask, const Predicate& keeps)
{
    const BlockMaskShape& s = mask.shape();
    std::int64_t kept = 0;
    for (std::int64_t b = 0; b < s.batch; ++b) {
        for (std::int64_t h = 0; h < s.heads_q; ++h) {
            for (std::int64_t i = 0; i < s.seqlen_q; ++i) {
                for (std::int64_t j = 0; j < s.seqlen_k; ++j) {
                    ASSERT_EQ(mask.keeps(b, h, i, j), keeps(b, h, i, j)) << b << " " << h << " " << i << " " << j;
                    kept += keeps(b, h, i, j) ? 1 : 0;
                }
            }
        }
    }
    EXPECT_EQ(mask.kept_pairs(), kept);
}

/// Both orders have the same blocks, each row ascending; no block is kept that hides all of its pairs, or is partial
/// and keeps all of them.
void expect_consistent(const BlockMask& mask)
{
    const BlockMaskShape& s = mask.shape();
    const auto size = [](std::int64_t n) { return static_cast<std::size_t>(n); };
    std::vector<std::int32_t> table(mask.table().size(), -2);
    std::vector<std::int32_t> other = table;
    for (std::int64_t row = 0; row < s.batch * s.heads_q * s.blocks_q(); ++row) {
        for (std::int64_t e = mask.by_query().starts[size(row)]; e < mask.by_query().starts[size(row) + 1]; ++e) {
            table[size(row * s.blocks_k() + mask.by_query().blocks[size(e)])] = mask.by_query().bits[size(e)];
            if (e > mask.by_query().starts[size(row)]) {
                EXPECT_LT(mask.by_query().blocks[size(e) - 1], mask.by_query().blocks[size(e)]);
            }
        }
    }
    for (std::int64_t row = 0; row < s.batch * s.heads_q * s.blocks_k(); ++row) {
        const std::int64_t head = s.blocks_k() > 0 ? row / s.blocks_k() : 0;
        for (std::int64_t e = mask.by_key().starts[size(row)]; e < mask.by_key().starts[size(row) + 1]; ++e) {
            const std::int64_t block_q = mask.by_key().blocks[size(e)];
            other[size((head * s.blocks_q() + block_q) * s.blocks_k() + row % s.blocks_k())] =
                mask.by_key().bits[size(e)];
            if (e > mask.by_key().starts[size(row)]) {
                EXPECT_LT(mask.by_key().blocks[size(e) - 1], mask.by_key().blocks[size(e)]);
            }
        }
    }
    EXPECT_EQ(table, other);
    EXPECT_TRUE(std::equal(table.begin(), table.end(), mask.table().begin(), mask.table().end()));
}

TEST(BlockMask, OfADenseMaskKeepsThePairsOfIt)
{
    std::mt19937_64 random(77);
    for (const auto& [block_q, block_k] : {std::pair{16, 16}, std::pair{17, 31}, std::pair{128, 64}}) {
        const HostTensor dense = random_mask(random, {2, 3, 70, 95}, 32, 0.4, 0.3, 0.5);
        const BlockMask mask = BlockMask::from_mask(dense.view(), block_q, block_k);
        const auto* const pairs = static_cast<const std::uint8_t*>(dense.data());
        expect_keeps(mask, [&](auto b, auto h, auto i, auto j) { return pairs[((b * 3 + h) * 70 + i) * 95 + j] != 0; });
        expect_consistent(mask);
        const BlockRows& rows = mask.by_query();
        const BlockMask again = BlockMask::from_blocks(mask.shape(), rows.starts, rows.blocks, rows.bits, mask.bits());
        EXPECT_TRUE(std::equal(again.table().begin(), again.table().end(), mask.table().begin(), mask.table().end()));
        EXPECT_EQ(again.kept_pairs(), mask.kept_pairs());
        EXPECT_FALSE(again == mask) << "another storage";
    }
}

TEST(BlockMask, MakersKeepWhatTheyAreDocumentedToKeep)
{
    for (const auto& [block_q, block_k] : {std::pair{16, 16}, std::pair{20, 33}, std::pair{64, 128}}) {
        SCOPED_TRACE(block_q);
        std::vector<std::int32_t> ids(2 * 100);
        for (std::size_t t = 0; t < ids.size(); ++t) {
            ids[t] = t % 100 >= 90 ? -1 : static_cast<std::int32_t>(t % 100 / (t < 100 ? 13 : 40));
        }
        std::swap(ids[3], ids[60]); // need not ascend
        for (const bool causal : {true, false}) {
            const BlockMask documents = BlockMask::from_documents(ids, 2, causal, block_q, block_k);
            expect_consistent(documents);
            expect_keeps(documents, [&](auto b, auto, auto i, auto j) {
                const std::int32_t at_i = ids[static_cast<std::size_t>(b * 100 + i)];
                return at_i >= 0 && at_i == ids[static_cast<std::size_t>(b * 100 + j)] && (!causal || j <= i);
            });
            const BlockMask global = BlockMask::sliding_with_global(110, 20, 5, 7, causal, block_q, block_k);
            expect_keeps(global, [&](auto, auto, auto i, auto j) {
                return (!causal || j <= i) && ((i - j <= 20 && j - i <= 5) || i < 7 || j < 7);
            });
        }
        expect_keeps(BlockMask::from_lengths(std::array<std::int64_t, 3>{30, 0, 41}, false, block_q, block_k),
                     [](auto, auto, auto i, auto j) { return (i < 30) == (j < 30); });
        expect_keeps(BlockMask::prefix_lm(std::array<std::int64_t, 2>{0, 40}, 90, block_q, block_k),
                     [](auto b, auto, auto i, auto j) { return j <= i || (b == 1 && j < 40); });
        expect_keeps(BlockMask::chunked(100, 27, block_q, block_k),
                     [](auto, auto, auto i, auto j) { return j <= i && i / 27 == j / 27; });
        expect_keeps(BlockMask::dilated(100, 50, 3, block_q, block_k),
                     [](auto, auto, auto i, auto j) { return j <= i && i - j < 50 && (i - j) % 3 == 0; });
        expect_keeps(BlockMask::sliding_with_global(100, -1, -1, 0, true, block_q, block_k),
                     [](auto, auto, auto i, auto j) { return j <= i; });
    }
}

TEST(BlockMask, OfAPredicateThatKnowsBlocksAsksNoPairsOfThese)
{
    struct Half {
        std::int64_t* asked;
        bool operator()(std::int64_t /*b*/, std::int64_t /*h*/, std::int64_t i, std::int64_t j) const
        {
            ++*asked;
            return i < 64 ? j < 32 : (i + j) % 2 == 0;
        }
        static BlockKind block(std::int64_t /*b*/, std::int64_t /*h*/, std::int64_t i0, std::int64_t /*i1*/,
                               std::int64_t j0, std::int64_t /*j1*/)
        {
            return i0 >= 64 ? BlockKind::partial : (j0 < 32 ? BlockKind::whole : BlockKind::hidden);
        }
    };
    std::int64_t asked = 0;
    const BlockMask mask = BlockMask::from_predicate({1, 2, 128, 96, 64, 32}, Half{&asked});
    EXPECT_EQ(asked, 2 * 64 * 96);
    std::int64_t unused = 0;
    expect_keeps(mask, Half{&unused});
    expect_consistent(mask);
}

void expect_refused(const std::function<void()>& make, const std::string& words)
{
    try {
        make();
        ADD_FAILURE() << "accepted; expected: " << words;
    } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
    }
}

TEST(BlockMask, RefusesWhatIsNone)
{
    const BlockMaskShape shape{1, 1, 64, 64, 32, 32};
    const auto make = [&](std::vector<std::int64_t> starts, std::vector<std::int32_t> blocks,
                          std::vector<std::int32_t> bits_of_block, std::size_t bytes) {
        return [=] {
            const std::vector<std::uint8_t> bits(bytes);
            static_cast<void>(BlockMask::from_blocks(shape, starts, blocks, bits_of_block, bits));
        };
    };
    EXPECT_NO_THROW(make({0, 1, 3}, {1, 0, 1}, {-1, 0, -1}, 128)());
    expect_refused(make({0, 1}, {1}, {-1}, 0), "starts had 2 entries from 0 to 1; it must have 3, from 0 to 1");
    expect_refused(make({0, 1, 2}, {1}, {-1}, 0), "starts had 3 entries from 0 to 2");
    expect_refused(make({0, 2, 1}, {1}, {-1}, 0), "starts goes from 0 to 2 at index 0");
    expect_refused(make({0, -5, 1}, {1}, {-1}, 0), "starts goes from 0 to -5 at index 0");
    expect_refused(make({0, 1, 2}, {2, 0}, {-1, -1}, 0), "block 0 of row 0 was 2; it must be 0 to 1");
    expect_refused(make({0, 0, 1}, {-1}, {-1}, 0), "block 0 of row 1 was -1; it must be 0 to 1");
    expect_refused(make({0, 2, 2}, {1, 0}, {-1, -1}, 0), "row 0 has block 0 after 1; blocks of a row must ascend");
    expect_refused(make({0, 2, 2}, {1, 1}, {-1, -1}, 0), "row 0 has block 1 after 1");
    expect_refused(make({0, 1, 1}, {0}, {1}, 128), "bits_of_block of block 0 of row 0 was 1; it must be -1 (whole) or "
                                                   "less than 1");
    expect_refused(make({0, 1, 1}, {0}, {-2}, 0), "bits_of_block of block 0 of row 0 was -2");
    expect_refused(make({0, 1, 1}, {0}, {-1, -1}, 0), "bits_of_block had 2 entries; it must have 1");
    expect_refused(make({0, 1, 1}, {0}, {0}, 100), "bits had 100 bytes; it must have 128 for each partial block");
    expect_refused([] { static_cast<void>(BlockMask::chunked(64, 8, 15, 16)); },
                   "block_q was 15; it must be 16 to 65536");
    expect_refused([] { static_cast<void>(BlockMask::chunked(64, 0)); }, "chunk of chunked was 0");
    expect_refused([] { static_cast<void>(BlockMask::chunked(std::int64_t{1} << 30, 8, 16, 16)); },
                   "blocks in all sequences and heads; at most");
    expect_refused([] { static_cast<void>(BlockMask::from_documents(std::array<std::int32_t, 3>{}, 2)); },
                   "ids has 3 documents of tokens");
    expect_refused([] { static_cast<void>(BlockMask::dilated(64, 8, 0)); }, "dilation of dilated was 0");
    expect_refused([] { static_cast<void>(BlockMask::prefix_lm({}, 8)); }, "number of prefixes of prefix_lm was 0");
    const HostTensor floats(DType::float32, {1, 1, 4, 4});
    expect_refused([&] { static_cast<void>(BlockMask::from_mask(floats.view())); }, "the dense mask is float32");
}

TEST(BlockMask, OfAnotherShapeIsRefusedByACall)
{
    AttentionCase attention({2, 4, 2, 64, 96, 16, 16}, DType::float32, 78);
    attention.poison_outputs();
    const auto keeps_all = [](auto, auto, auto, auto) { return true; };
    for (const BlockMaskShape& shape : {BlockMaskShape{3, 1, 64, 96}, BlockMaskShape{1, 2, 64, 96},
                                        BlockMaskShape{1, 1, 96, 96}, BlockMaskShape{1, 1, 64, 64}}) {
        attention.options.block_mask = BlockMask::from_predicate(shape, keeps_all);
        expect_refused([&] { forward(attention.forward_args(), attention.options); },
                       fmt::format("block_mask is of [{}, {}, {}, {}]; it must be of [1 or 2, 1 or 4, 64, 96].",
                                   shape.batch, shape.heads_q, shape.seqlen_q, shape.seqlen_k));
    }
}

TEST(DenseMask, OfAnotherShapeOrTypeIsRefusedByACall)
{
    AttentionCase attention({2, 4, 2, 64, 90, 16, 16}, DType::float32, 79);
    attention.poison_outputs();
    const auto refused = [&](const ConstTensorView& view, const std::string& words) {
        attention.options.mask = view;
        expect_refused([&] { forward(attention.forward_args(), attention.options); }, words);
    };
    const HostTensor narrow(DType::boolean, {1, 1, 64, 89});
    refused(narrow.view(), "mask has shape [1, 1, 64, 89]; it must be [1 or 2, 1 or 4, 1 or 64, 1 or 90].");
    const HostTensor floats(DType::float32, {1, 1, 64, 90});
    refused(floats.view(), "mask is float32; it must be boolean or bits.");
    const HostTensor bytes(DType::boolean, {1, 1, 64, 11});
    refused(view_of_bits(bytes), "mask has shape [1, 1, 64, 11]; it must be [1 or 2, 1 or 4, 1 or 64, 12], 8 keys to a "
                                 "byte.");
}

} // namespace
} // namespace flashomp::testing
