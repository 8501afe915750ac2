// The same (seed, offset) gives the same dropout mask on every machine, tile size and number of threads, and it is the
// mask that dropout_mask() and the reference return: with values that pick single probabilities out, o and dv show it.
#include "support/attention_case.hpp"
#include "support/target.hpp"

#include <algorithm>
#include <array>

namespace flashomp::testing {
namespace {

using Mask = std::vector<std::uint8_t>;

/// A problem with v and dout such that o = dropout(p) and dv = dropout(p) transposed: v is the identity in every
/// head, and dout too.
AttentionCase case_that_shows_its_mask(std::int64_t n_q, std::int64_t n_k, std::uint64_t seed)
{
    const std::int64_t d_v = std::max(n_q, n_k);
    AttentionCase attention({2, 4, 4, n_q, n_k, 16, d_v}, DType::float32, seed, 0.5F);
    const auto identity = [d_v](HostTensor& tensor) {
        auto* values = static_cast<float*>(tensor.data());
        const std::int64_t n = tensor.shape()[1];
        std::fill_n(values, tensor.elements(), 0.0F);
        for (std::int64_t row = 0; row < 2 * n * 4; ++row) {
            values[row * d_v + row / 4 % n] = 1.0F;
        }
    };
    identity(attention.v);
    identity(attention.dout);
    attention.add_dropout(0.3);
    return attention;
}

/// [B, Hq, Nq, Nk] from o [B, Nq, Hq, d_v]: o(i, j) is not 0 where (i, j) was kept.
Mask mask_in_o(const AttentionCase& attention)
{
    const Shape& s = attention.shape();
    const auto* o = static_cast<const float*>(attention.o.data());
    Mask mask;
    for (std::int64_t row = 0; row < s.batch * s.heads_q * s.seqlen_q; ++row) {
        const std::int64_t b = row / s.seqlen_q / s.heads_q;
        const std::int64_t h = row / s.seqlen_q % s.heads_q;
        const std::int64_t i = row % s.seqlen_q;
        const float* values = o + ((b * s.seqlen_q + i) * s.heads_q + h) * s.head_dim_v;
        std::transform(values, values + s.seqlen_k, std::back_inserter(mask),
                       [](float x) { return static_cast<std::uint8_t>(x != 0.0F ? 1 : 0); });
    }
    return mask;
}

/// The same from dv [B, Nk, Hkv, d_v]: dv(j, i).
Mask mask_in_dv(const AttentionCase& attention)
{
    const Shape& s = attention.shape();
    const auto* dv = static_cast<const float*>(attention.dv.data());
    Mask mask;
    for (std::int64_t row = 0; row < s.batch * s.heads_q * s.seqlen_q; ++row) {
        const std::int64_t b = row / s.seqlen_q / s.heads_q;
        const std::int64_t h = row / s.seqlen_q % s.heads_q;
        for (std::int64_t j = 0; j < s.seqlen_k; ++j) {
            const float x = dv[((b * s.seqlen_k + j) * s.heads_q + h) * s.head_dim_v + row % s.seqlen_q];
            mask.push_back(x != 0.0F ? 1 : 0);
        }
    }
    return mask;
}

Mask drawn(const AttentionCase& attention)
{
    const Shape& s = attention.shape();
    HostTensor mask(DType::boolean, {s.batch, s.heads_q, s.seqlen_q, s.seqlen_k}, Fill::poison);
    dropout_mask(attention.options.dropout, mask.view());
    const auto* kept = static_cast<const std::uint8_t*>(mask.data());
    return {kept, kept + mask.elements()};
}

class DropoutMask : public EveryTargetTest {
protected:
    void check(AttentionCase& attention, const Options& options, const Mask& expected)
    {
        expect_ran_on_target(attention.run(options).second, attention.dtype());
        EXPECT_EQ(mask_in_o(attention), expected) << "forward";
        EXPECT_EQ(mask_in_dv(attention), expected) << "backward";
    }
};

INSTANTIATE_TEST_SUITE_P(Machines, DropoutMask, ::testing::ValuesIn(targets()), target_name);

TEST_P(DropoutMask, IsTheOneThatDropoutMaskReturns)
{
    for (const auto& [n_q, n_k] : {std::pair{70, 130}, std::pair{130, 70}, std::pair{3, 256}, std::pair{97, 1}}) {
        AttentionCase attention = case_that_shows_its_mask(n_q, n_k, 971);
        check(attention, on_target(attention.options), drawn(attention));
        EXPECT_EQ(reference::dropout_mask(validate_backward(attention.backward_args(), attention.options)),
                  drawn(attention));
    }
}

TEST_P(DropoutMask, UsesEveryBitOfSeedAndOffset)
{
    AttentionCase attention = case_that_shows_its_mask(20, 30, 972);
    std::vector<Mask> seen;
    for (const std::uint64_t seed : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{1} << 63U}) {
        for (const std::uint64_t offset : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{1} << 63U}) {
            attention.options.dropout = {0.5, seed, offset};
            const Mask mask = drawn(attention);
            check(attention, on_target(attention.options), mask);
            EXPECT_EQ(std::count(seen.begin(), seen.end(), mask), 0);
            seen.push_back(mask);
        }
    }
}

TEST_P(DropoutMask, DoesNotDependOnTilesOrThreads)
{
    AttentionCase attention = case_that_shows_its_mask(75, 101, 973);
    const Mask expected = drawn(attention);
    for (const auto& [resident, stream] : {std::pair{16, 4}, std::pair{32, 20}, std::pair{48, 16}, std::pair{16, 32}}) {
        for (const int threads : {1, 3}) {
            SCOPED_TRACE(::testing::Message() << resident << " resident, " << stream << " stream, " << threads);
            Options options = on_target(attention.options);
            options.tiling.resident_rows = resident;
            options.tiling.stream_rows = stream;
            options.tiling.global_memory = GetParam().is_device; // any tile fits there
            options.threads = threads;
            check(attention, options, expected);
        }
    }
}

TEST_P(DropoutMask, CountsFromTheStartOfEachPackedSequence)
{
    // Row i of sequence b draws what row i of batch entry b draws, though lengths differ.
    const Lengths lengths{{40, 0, 9, 17}, {33, 5, 40, 21}};
    AttentionCase packed({0, 2, 1, 0, 0, 16, 40}, lengths, DType::float32, 974);
    auto* v = static_cast<float*>(packed.v.data());
    std::fill_n(v, packed.v.elements(), 0.0F);
    for (std::int64_t b = 0, row = 0; b < 4; ++b) {
        for (std::int64_t j = 0; j < lengths.k[static_cast<std::size_t>(b)]; ++j, ++row) {
            v[row * 40 + j] = 1.0F;
        }
    }
    packed.add_dropout(0.3);
    expect_ran_on_target(packed.run(on_target(packed.options)).second, packed.dtype());
    const Mask expected = drawn(packed); // [4, 2, 40, 40]: the longest lengths
    const auto* o = static_cast<const float*>(packed.o.data());
    for (std::int64_t b = 0, row = 0; b < 4; ++b) {
        for (std::int64_t i = 0; i < lengths.q[static_cast<std::size_t>(b)]; ++i, ++row) {
            for (std::int64_t h = 0; h < 2; ++h) {
                for (std::int64_t j = 0; j < lengths.k[static_cast<std::size_t>(b)]; ++j) {
                    ASSERT_EQ(o[(row * 2 + h) * 40 + j] != 0.0F,
                              expected[static_cast<std::size_t>(((b * 2 + h) * 40 + i) * 40 + j)] != 0)
                        << b << " " << h << " " << i << " " << j;
                }
            }
        }
    }
    packed.expect_close();
}

TEST_P(DropoutMask, ResultsDoNotDependOnTilesEither)
{
    AttentionCase attention({1, 4, 2, 75, 101, 24, 40}, DType::float32, 975);
    attention.options.causal = Causal::bottom_right;
    attention.options.softcap = 20.0;
    attention.add_alibi();
    attention.add_bias({true, false, false, false});
    attention.add_key_padding();
    attention.add_sink();
    attention.add_dropout(0.17);
    for (const auto& [resident, stream] : {std::pair{16, 4}, std::pair{32, 20}, std::pair{64, 16}, std::pair{16, 64}}) {
        SCOPED_TRACE(::testing::Message() << resident << " resident, " << stream << " stream");
        Options options = on_target(attention.options);
        options.tiling.resident_rows = resident;
        options.tiling.stream_rows = stream;
        options.tiling.global_memory = GetParam().is_device;
        static_cast<void>(attention.run(options));
        attention.expect_close();
    }
}

} // namespace
} // namespace flashomp::testing
