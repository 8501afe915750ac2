// Masks of any shape on every machine: parity with float64, a block mask has the bits of its dense mask, a dense mask
// those of its packed form and of a bias of 0 and −∞, and what no row sees has no influence.
#include "support/masked.hpp"
#include "support/parity.hpp"

#include "reference.hpp"

#include <cmath>
#include <limits>

namespace flashomp::testing {
namespace {

class Masks : public TargetTest, public ::testing::WithParamInterface<std::tuple<Target, DType>> {
protected:
    void SetUp() override { use(std::get<Target>(GetParam())); }

    [[nodiscard]] static DType dtype() { return std::get<DType>(GetParam()); }

    Results results_of(AttentionCase& attention)
    {
        static_cast<void>(attention.run(on_target(attention.options)));
        return attention.take_results();
    }

    /// Every result within the tolerance rule.
    void check(AttentionCase& attention)
    {
        static_cast<void>(attention.run(on_target(attention.options)));
        attention.expect_close();
    }
};

INSTANTIATE_TEST_SUITE_P(Machines, Masks, parity_params(), parity_name);

struct Kinds {
    double hidden, whole, kept;
};

constexpr std::array all_kinds{Kinds{0.0, 0.0, 0.5}, Kinds{0.5, 0.3, 0.5}, Kinds{0.9, 0.05, 0.3},
                               Kinds{0.0, 1.0, 1.0}, Kinds{1.0, 0.0, 0.0}, Kinds{0.3, 0.0, 0.02}};

TEST_P(Masks, AreExactAtEveryDensity)
{
    std::uint64_t seed = 4100;
    for (const Kinds& kinds : all_kinds) {
        SCOPED_TRACE(fmt::format("hidden {} whole {} kept {}", kinds.hidden, kinds.whole, kinds.kept));
        AttentionCase attention({2, 4, 2, 149, 301, 40, 24}, dtype(), ++seed);
        const HostTensor mask =
            random_mask(attention.random(), {2, 4, 149, 301}, 64, kinds.hidden, kinds.whole, kinds.kept);
        attention.options.mask = mask.view();
        check(attention);
    }
}

TEST_P(Masks, AreExactAtHeadDim128)
{
    AttentionCase attention({1, 4, 2, 277, 330, 128, 100}, dtype(), 4150);
    const HostTensor mask = random_mask(attention.random(), {1, 4, 277, 330}, 64, 0.3, 0.3, 0.5);
    attention.options.block_mask = BlockMask::from_mask(mask.view(), 64, 48);
    check(attention);
}

TEST_P(Masks, BroadcastAlongEveryAxis)
{
    std::uint64_t seed = 4200;
    for (const io::Shape& shape : {io::Shape{1, 4, 70, 130}, io::Shape{2, 1, 70, 130}, io::Shape{2, 4, 1, 130},
                                   io::Shape{1, 1, 70, 130}, io::Shape{1, 1, 1, 130}, io::Shape{2, 4, 70, 1}}) {
        SCOPED_TRACE(fmt::format("{} {} {} {}", shape[0], shape[1], shape[2], shape[3]));
        AttentionCase attention({2, 4, 1, 70, 130, 32, 32}, dtype(), ++seed);
        const HostTensor mask = random_mask(attention.random(), shape, 32, 0.3, 0.3, 0.6);
        attention.options.mask = mask.view();
        check(attention);
    }
}

TEST_P(Masks, MeetOtherOptions)
{
    for (const int variant : {0, 1, 2, 3}) {
        SCOPED_TRACE(variant);
        AttentionCase attention({2, 4, 2, 120, 160, 32, 48}, dtype(), 4300 + static_cast<std::uint64_t>(variant));
        const HostTensor mask = random_mask(attention.random(), {2, 4, 120, 160}, 48, 0.4, 0.3, 0.5);
        attention.options.mask = mask.view();
        if (variant == 0) {
            attention.options.causal = Causal::bottom_right;
            attention.add_key_padding(0.3);
        } else if (variant == 1) {
            attention.options.window = {40, 20};
            attention.add_sink();
            attention.add_dropout(0.3);
        } else if (variant == 2) {
            attention.options.softcap = 7.0;
            attention.add_alibi();
            attention.add_bias({true, false, false, false}, DType::float32);
        } else {
            attention.options.causal = Causal::top_left;
            attention.options.block_mask = BlockMask::from_predicate(
                {1, 1, 120, 160, 24, 40}, [](auto, auto, auto i, auto j) { return (i / 30 + j / 50) % 3 != 0; });
            attention.add_bias({true, true, true, false});
        }
        check(attention);
    }
}

TEST_P(Masks, PackedSequencesCountFromTheirStarts)
{
    AttentionCase attention({1, 2, 1, 1, 1, 32, 32}, Lengths{{30, 0, 77, 50}, {50, 9, 70, 120}}, dtype(), 4400);
    const HostTensor mask = random_mask(attention.random(), {4, 1, 77, 120}, 32, 0.3, 0.3, 0.5);
    attention.options.mask = mask.view();
    check(attention);
    attention.options.mask = {};
    attention.options.block_mask = BlockMask::from_mask(mask.view(), 16, 48);
    check(attention);
}

TEST_P(Masks, OneQueryAgainstManyKeys)
{
    for (const std::int64_t heads : {1, 8}) {
        AttentionCase attention({2, 8, 2, 1, 3000, 64, 64}, dtype(), 4500);
        const HostTensor mask = random_mask(attention.random(), {2, heads, 1, 3000}, 128, 0.5, 0.2, 0.5);
        attention.options.mask = mask.view();
        check(attention);
        attention.options.mask = {};
        attention.options.block_mask = BlockMask::from_mask(mask.view(), 16, 100);
        check(attention);
    }
}

TEST_P(Masks, ABlockMaskHasTheBitsOfItsDenseMask)
{
    std::uint64_t seed = 4600;
    for (const auto& [block_q, block_k] :
         {std::pair{128, 128}, std::pair{16, 16}, std::pair{64, 32}, std::pair{19, 45}, std::pair{1000, 17}}) {
        SCOPED_TRACE(fmt::format("{} {}", block_q, block_k));
        AttentionCase attention({2, 2, 1, 200, 310, 32, 32}, dtype(), ++seed);
        const bool has_heads = block_q != 64;
        const HostTensor mask =
            random_mask(attention.random(), {has_heads ? 2 : 1, has_heads ? 2 : 1, 200, 310}, 64, 0.5, 0.3, 0.4);
        attention.options.mask = mask.view();
        const Results dense = results_of(attention);
        const HostTensor bits = packed_bits(mask);
        attention.options.mask = view_of_bits(bits);
        expect_same_bits(results_of(attention), dense);
        attention.options.mask = {};
        attention.options.block_mask = BlockMask::from_mask(mask.view(), block_q, block_k);
        expect_same_bits(results_of(attention), dense);
    }
}

TEST_P(Masks, ADenseMaskIsABiasOfMinusInfinity)
{
    AttentionCase attention({1, 2, 1, 90, 170, 32, 32}, dtype(), 4700);
    const HostTensor mask = random_mask(attention.random(), {1, 1, 90, 170}, 32, 0.3, 0.3, 0.5);
    attention.options.mask = mask.view();
    const Results masked = results_of(attention);
    attention.options.mask = {};
    attention.add_bias({true, true, false, false}, DType::float32);
    const auto* const pairs = static_cast<const std::uint8_t*>(mask.data());
    auto* const bias = static_cast<float*>(attention.bias.data());
    for (std::int64_t x = 0; x < mask.elements(); ++x) {
        bias[x] = pairs[x] != 0 ? 0.0F : -std::numeric_limits<float>::infinity();
    }
    const Results biased = results_of(attention);
    const double bound = dtype() == DType::float32 ? 2e-5 : (dtype() == DType::bfloat16 ? 0.04 : 0.005);
    for (const auto& [a, b, name] :
         {std::tuple{&masked.o, &biased.o, "o"}, std::tuple{&masked.dq, &biased.dq, "dq"},
          std::tuple{&masked.dk, &biased.dk, "dk"}, std::tuple{&masked.dv, &biased.dv, "dv"}}) {
        EXPECT_LE(max_error(doubles(*a), doubles(*b)), bound) << name;
    }
}

TEST_P(Masks, StridesMayBeAny)
{
    AttentionCase attention({2, 2, 2, 60, 110, 32, 32}, dtype(), 4800);
    const HostTensor mask = random_mask(attention.random(), {2, 2, 60, 110}, 32, 0.3, 0.3, 0.5);
    attention.options.mask = mask.view();
    const Results expected = results_of(attention);
    HostTensor turned(DType::boolean, {2, 2, 110, 60});
    const auto* const from = static_cast<const std::uint8_t*>(mask.data());
    auto* const to = static_cast<std::uint8_t*>(turned.data());
    for (std::int64_t head = 0; head < 4; ++head) {
        for (std::int64_t i = 0; i < 60; ++i) {
            for (std::int64_t j = 0; j < 110; ++j) {
                to[(head * 110 + j) * 60 + i] = from[(head * 60 + i) * 110 + j];
            }
        }
    }
    attention.options.mask = std::as_const(turned).view().transposed(2, 3);
    expect_same_bits(results_of(attention), expected);
}

TEST_P(Masks, HiddenPairsMayHoldAnything)
{
    for (const bool in_blocks : {false, true}) {
        for (const bool modified : {false, true}) {
            SCOPED_TRACE(fmt::format("blocks {} modified {}", in_blocks, modified));
            AttentionCase attention({1, 2, 1, 150, 320, 32, 32}, dtype(), 4900);
            HostTensor mask = random_mask(attention.random(), {1, 1, 150, 320}, 64, 0.3, 0.3, 0.5);
            auto* const pairs = static_cast<std::uint8_t*>(mask.data());
            const auto is_hidden = [](std::int64_t j) { return (j >= 64 && j < 192) || j % 50 == 7; };
            for (std::int64_t x = 0; x < mask.elements(); ++x) {
                pairs[x] = is_hidden(x % 320) ? 0 : pairs[x];
            }
            if (in_blocks) {
                attention.options.block_mask = BlockMask::from_mask(mask.view(), 64, 64);
            } else {
                attention.options.mask = mask.view();
            }
            if (modified) {
                attention.options.softcap = 9.0;
                attention.add_sink();
            }
            const Results clean = results_of(attention);
            for (std::int64_t j = 0; j < 320; ++j) {
                for (std::int64_t x = 0; is_hidden(j) && x < 32; ++x) {
                    reference::write_element(attention.k.view(), j * 32 + x, std::numeric_limits<double>::quiet_NaN());
                    reference::write_element(attention.v.view(), j * 32 + x, std::numeric_limits<double>::infinity());
                }
            }
            const Results spoilt = results_of(attention);
            const double bound = dtype() == DType::float32 ? 1e-4 : (dtype() == DType::bfloat16 ? 0.1 : 0.02);
            for (const auto& [a, b, name] :
                 {std::tuple{&spoilt.o, &clean.o, "o"}, std::tuple{&spoilt.dq, &clean.dq, "dq"},
                  std::tuple{&spoilt.dk, &clean.dk, "dk"}, std::tuple{&spoilt.dv, &clean.dv, "dv"}}) {
                for (const double x : doubles(*a)) {
                    ASSERT_TRUE(std::isfinite(x)) << name;
                }
                EXPECT_LE(max_error(doubles(*a), doubles(*b)), bound) << name;
            }
        }
    }
}

/// Whole tiles that are hidden are not even looked at: nothing is computed twice.
TEST_P(Masks, HiddenTilesAreNotLoaded)
{
    AttentionCase attention({1, 2, 1, 256, 1024, 32, 32}, dtype(), 5000);
    // Blocks of 256 hold the tiles of every machine.
    attention.options.block_mask = BlockMask::from_predicate(
        {1, 1, 256, 1024, 256, 256}, [](auto, auto, auto, auto j) { return j / 256 == 1 || j / 256 == 3; });
    for (std::int64_t j = 0; j < 1024; ++j) {
        for (std::int64_t x = 0; j / 256 % 2 == 0 && x < 32; ++x) {
            reference::write_element(attention.k.view(), j * 32 + x, std::numeric_limits<double>::quiet_NaN());
            reference::write_element(attention.v.view(), j * 32 + x, std::numeric_limits<double>::quiet_NaN());
        }
    }
    const auto [first, second] = attention.run(on_target(attention.options));
    EXPECT_FALSE(first.computed_twice);
    EXPECT_FALSE(second.computed_twice);
    for (const HostTensor* const tensor : {&attention.o, &attention.dq, &attention.dk, &attention.dv}) {
        for (const double x : doubles(*tensor)) {
            ASSERT_TRUE(std::isfinite(x));
        }
    }
}

TEST_P(Masks, DoNotDependOnThreadsOrTilesBeyondRounding)
{
    AttentionCase attention({1, 3, 1, 333, 500, 48, 48}, dtype(), 5100);
    const HostTensor mask = random_mask(attention.random(), {1, 3, 333, 500}, 48, 0.6, 0.2, 0.5);
    attention.options.mask = mask.view();
    Options options = on_target(attention.options);
    options.threads = 1;
    static_cast<void>(attention.run(options));
    const Results one = attention.take_results();
    for (int round = 0; round < 3; ++round) {
        options.threads = 4;
        static_cast<void>(attention.run(options));
        expect_same_bits(attention.take_results(), one);
    }
}

} // namespace
} // namespace flashomp::testing
