// Key/value caches: one result whatever form a cache has, NaN where nobody may read, and prepared calls whose lengths
// and tables change from run to run.
#include "support/cache_test.hpp"
#include "support/run_memory.hpp"

#include "flashomp/prepared.hpp"

#include <vector>

namespace flashomp::testing {
namespace {

class Caches : public CacheTest {};

INSTANTIATE_TEST_SUITE_P(Machines, Caches, ::testing::ValuesIn(targets()), target_name);

TEST_P(Caches, HaveTheReferencesResultsInEveryForm)
{
    const std::vector<Features> all{with({}),
                                    with({Feature::bottom_right, Feature::grouped_heads}),
                                    with({Feature::top_left, Feature::value_head_dim}),
                                    with({Feature::window, Feature::alibi, Feature::grouped_heads}),
                                    with({Feature::window, Feature::sink, Feature::grouped_heads}),
                                    with({Feature::window, Feature::key_padding, Feature::sink}),
                                    with({Feature::bottom_right, Feature::sink, Feature::grouped_heads}),
                                    with({Feature::softcap, Feature::bias, Feature::sink}),
                                    with({Feature::key_padding, Feature::dropout, Feature::bottom_right}),
                                    with({Feature::mask, Feature::bottom_right, Feature::grouped_heads}),
                                    with({Feature::block_mask, Feature::mask, Feature::alibi, Feature::sink})};
    std::uint64_t seed = 100;
    for (const Features& features : all) {
        for (const std::int64_t queries : {1, 3, 20, 70}) {
            for (const DType dtype : {DType::float32, DType::bfloat16, DType::float16}) {
                SCOPED_TRACE(::testing::Message() << names(features) << ", " << queries << " queries, "
                                                  << name_of(dtype) << ", seed " << seed);
                CacheCase cached = cache_case_with(features, dtype, seed++, queries);
                const Outputs expected = run(cached, CacheForm::contiguous);
                expect_close(cached, CacheForm::contiguous, expected);
                for (const CacheForm form : cache_forms) {
                    if (takes(cached.attention.options, form)) {
                        SCOPED_TRACE(static_cast<int>(form));
                        const Outputs outputs = run(cached, form);
                        // The compressed form is planned for all pages that there are: on a GPU for other parts.
                        if (form == CacheForm::compressed && target_.is_device) {
                            expect_close(cached, form, outputs);
                        } else {
                            expect_same(outputs, expected);
                        }
                    }
                }
            }
        }
    }
}

TEST_P(Caches, SplitTheKeysOfOneQueryAlike)
{
    for (const std::int64_t page_size : {1, 7, 16, 256}) {
        SCOPED_TRACE(page_size);
        const std::int64_t keys = 9000 / page_size * page_size;
        CacheCase cached({2, 4, 2, 1, keys, 64, 64}, {static_cast<std::int32_t>(keys), 4097}, page_size,
                         DType::bfloat16, 31);
        const Outputs expected = run(cached, CacheForm::contiguous);
        expect_close(cached, CacheForm::contiguous, expected);
        expect_same(run(cached, CacheForm::block_table), expected);
        expect_same(run(cached, CacheForm::batch_index), expected);
    }
}

/// The heads of a group, with a sink each, are the rows of one block, and of a window's keys the last ones are left:
/// they begin in the middle of a page and, for shorter sequences, with the first key. Window: longer and shorter than
/// what is cut into parts.
TEST_P(Caches, HaveSinksAndWindowsForTheHeadsOfAGroup)
{
    struct Form {
        std::int64_t page_size, head_dim, head_dim_v;
    };
    for (const auto& [page_size, head_dim, head_dim_v] : {Form{7, 64, 48}, Form{16, 128, 128}, Form{256, 256, 256}}) {
        const std::int64_t keys = 9000 / page_size * page_size;
        for (const std::int64_t left : {std::int64_t{0}, std::int64_t{300}, std::int64_t{6001}, keys - 2, keys - 1}) {
            for (const DType dtype : {DType::bfloat16, DType::float32}) {
                SCOPED_TRACE(::testing::Message()
                             << "pages of " << page_size << ", window of " << left << " before, " << name_of(dtype));
                CacheCase cached({4, 6, 2, 1, keys, head_dim, head_dim_v}, {static_cast<std::int32_t>(keys), 250, 0, 1},
                                 page_size, dtype, 41);
                cached.attention.add_sink();
                cached.attention.options.window = {left, 0};
                const Outputs expected = run(cached, CacheForm::contiguous);
                expect_close(cached, CacheForm::contiguous, expected);
                expect_same(run(cached, CacheForm::block_table), expected);
                expect_same(run(cached, CacheForm::batch_index), expected);
            }
        }
    }
}

/// Scales of 8 bits are found by the row of the cache, not by that of the window.
TEST_P(Caches, HaveTheScalesOfThePagesThatAWindowReaches)
{
    CacheCase cached({2, 4, 2, 1, 640, 64, 64}, {633, 40}, 16, DType::bfloat16, 43);
    cached.quantise(DType::int8, ScaledBy::pages);
    cached.attention.add_sink();
    cached.attention.options.window = {117, 0};
    expect_close(cached, CacheForm::block_table, run(cached, CacheForm::block_table));
    expect_close(cached, CacheForm::compressed, run(cached, CacheForm::compressed));
}

/// Rows of more than 256 elements in pages that follow one another nowhere.
TEST_P(Caches, TakeWideHeads)
{
    for (const DType dtype : {DType::float32, DType::bfloat16, DType::float16}) {
        for (const std::int64_t queries : {1, 40}) {
            SCOPED_TRACE(::testing::Message() << name_of(dtype) << ", " << queries << " queries");
            CacheCase cached({2, 2, 1, queries, 80, 576, 512}, {77, 40}, 5, dtype, 17);
            const Outputs expected = run(cached, CacheForm::contiguous);
            expect_close(cached, CacheForm::contiguous, expected);
            expect_same(run(cached, CacheForm::block_table), expected);
            const Outputs expected_plain = run_plain(cached, CacheForm::contiguous);
            expect_close(cached, CacheForm::contiguous, expected_plain);
            expect_same(run_plain(cached, CacheForm::block_table), expected_plain);
            for (const ScaledBy by : {ScaledBy::heads, ScaledBy::pages}) {
                CacheCase narrow({2, 2, 1, queries, 80, 576, 512}, {77, 40}, 5, dtype, 18);
                narrow.quantise(by == ScaledBy::heads ? DType::float8_e4m3 : DType::int8, by);
                expect_close(narrow, CacheForm::block_table, run(narrow, CacheForm::block_table));
            }
        }
    }
}

TEST_P(Caches, TakePackedQueries)
{
    const std::vector<std::int32_t> rows{3, 0, 40, 1}, lengths{50, 8, 61, 64};
    CacheCase cached({4, 4, 2, 40, 64, 32, 24}, lengths, 16, DType::float32, 7);
    const AttentionCase packed({0, 4, 2, 0, 0, 32, 24}, Lengths{rows, lengths}, DType::float32, 8);
    cached.attention.options.causal = Causal::bottom_right;
    for (const CacheForm form : cache_forms) {
        SCOPED_TRACE(static_cast<int>(form));
        ForwardArgs args = cached.args(form);
        Options options = options_of(cached, form);
        options.cu_seqlens_q = packed.cu_seqlens_q.view();
        args.q = packed.q.view();
        HostTensor o(DType::float32, {44, 4, 24}, Fill::poison);
        HostTensor lse(DType::float32, {4, 44}, Fill::poison);
        args.o = o.view();
        args.lse = lse.view();
        forward(args, options);
        const Outputs outputs{std::move(o), std::move(lse)};
        o = HostTensor(DType::float32, {44, 4, 24}, Fill::poison);
        lse = HostTensor(DType::float32, {4, 44}, Fill::poison);
        args.o = o.view();
        args.lse = lse.view();
        options.backend = Backend::reference;
        options.machine = Machine::automatic;
        options.device.kind = Device::Kind::host;
        forward(args, options);
        EXPECT_LT(max_error(doubles(outputs.o), doubles(o)), 1e-5);
        EXPECT_LT(max_error(doubles(outputs.lse), doubles(lse)), 1e-5);
    }
}

TEST_P(Caches, MayShareAPage)
{
    CacheCase cached({3, 2, 2, 2, 64, 32, 32}, {40, 64, 33}, 16, DType::float32, 9);
    std::copy_n(cached.table(), 2, cached.table() + 4); // sequence 1 begins with the first pages of sequence 0
    const Outputs outputs = run(cached, CacheForm::block_table);
    expect_close(cached, CacheForm::block_table, outputs);
}

TEST_P(Caches, KeepAWrongNumberToTheSequenceThatHasIt)
{
    CacheCase cached({2, 2, 1, 3, 64, 32, 32}, {40, 64}, 16, DType::float32, 10);
    const Outputs clean = run(cached, CacheForm::block_table);
    auto* const keys = static_cast<float*>(cached.attention.k.data());
    keys[5 * 32] = std::numeric_limits<float>::quiet_NaN(); // key 5 of sequence 0
    cached.set_lengths({40, 64});
    const Report report = forward(cached.args(CacheForm::block_table), options_of(cached, CacheForm::block_table));
    EXPECT_TRUE(report.computed_twice);
    const std::vector<double> o = doubles(cached.attention.o), before = doubles(clean.o);
    const auto half = o.size() / 2;
    for (std::size_t i = 0; i < half; ++i) {
        EXPECT_TRUE(std::isnan(o[i]));
        EXPECT_NEAR(o[half + i], before[half + i], 1e-6);
    }
}

TEST_P(Caches, GrowFromRunToRunOfAPreparedCall)
{
    for (const CacheForm form : cache_forms) {
        for (const DType dtype : {DType::float32, DType::bfloat16}) {
            SCOPED_TRACE(static_cast<int>(form));
            CacheCase cached({3, 8, 2, 1, 4096, 64, 64}, {0, 1, 100}, 16, dtype, 11);
            ForwardArgs args = cached.args(form);
            Options options = options_of(cached, form);
            PreparedForward call = prepare(args, options);
            RunMemory memory(call.workspace_bytes());
            const std::span<std::byte> workspace = memory.span();
            if (call.workspace_memory() == Memory::device) {
                GTEST_SKIP() << "the workspace is on a device; parity there is of the calls above";
            }
            for (const std::int32_t more : {0, 1, 15, 2000, 3996}) {
                cached.set_lengths({more, 1 + more, 100 + more});
                cached.shuffle_pages();
                const Outputs expected = run(cached, form);
                args = cached.args(form);
                call.run(args, workspace);
                expect_same({std::move(cached.attention.o), std::move(cached.attention.lse)}, expected);
            }
        }
    }
}

} // namespace
} // namespace flashomp::testing
