// Every bad table and length of a key/value cache: one sentence that names it, and outputs left as they were.
#include "refusal.hpp"
#include "support/cache_case.hpp"
#include "support/run_memory.hpp"

#include "flashomp/prepared.hpp"

#include <cmath>
#include <cstddef>
#include <functional>
#include <limits>
#include <span>
#include <vector>

namespace flashomp::testing {
namespace {

struct BadCache {
    const char* name;
    const char* says;
    CacheForm form;
    std::function<void(CacheCase&, ForwardArgs&, Options&)> spoil;
};

void PrintTo(const BadCache& bad, std::ostream* out)
{
    *out << bad.name;
}

/// A change of a table's values alone, which a run of a prepared call refuses, too.
auto values(void (*spoil)(CacheCase&))
{
    return [spoil](CacheCase& c, ForwardArgs&, Options&) { spoil(c); };
}

ConstTensorView shaped(const CacheCase& c, DType dtype, std::initializer_list<std::int64_t> shape)
{
    return ConstTensorView::contiguous(c.attention.q.data(), dtype, shape);
}

// Batch 3, lengths 20, 0 and 64; 4 pages of 16 rows for each; 15 pages in all.
const std::vector<BadCache>& bad_values()
{
    using enum CacheForm;
    static const std::vector<BadCache> all{
        {"PageBeyond", "block_table is 15 for page 1 of sequence 0; allowed are 0 to 14, the pages of k", block_table,
         values([](CacheCase& c) { c.table()[1] = 15; })},
        {"PageNegative", "block_table is -1 for page 3 of sequence 2", block_table,
         values([](CacheCase& c) { c.table()[11] = -1; })},
        {"PageOfAnIndexBeyond", "kv_indices is 99 for page 0 of sequence 2", compressed,
         values([](CacheCase& c) { c.indices()[2] = 99; })},
        {"CacheBeyond", "cache_batch_index is 4 for page 0 of sequence 2; allowed are 0 to 3, the caches of k",
         batch_index, values([](CacheCase& c) { c.batch_index()[2] = 4; })},
        {"LengthBeyond", "cache_seqlens is 65 for sequence 2; allowed are 0 to 64, the rows of its cache", block_table,
         values([](CacheCase& c) { c.seqlens()[2] = 65; })},
        {"LengthBeyondTheCache", "cache_seqlens is 65 for sequence 1", contiguous,
         values([](CacheCase& c) { c.seqlens()[1] = 65; })},
        {"LengthNegative", "cache_seqlens is -1 for sequence 0", batch_index,
         values([](CacheCase& c) { c.seqlens()[0] = -1; })},
        {"LengthSmallest", "cache_seqlens is -2147483648 for sequence 0", contiguous,
         values([](CacheCase& c) { c.seqlens()[0] = std::numeric_limits<std::int32_t>::min(); })},
        {"StartNegative", "kv_indptr starts at -1", compressed, values([](CacheCase& c) { c.indptr()[0] = -1; })},
        {"StartsDecrease", "kv_indptr decreases from 7 to 2 at index 2", compressed,
         values([](CacheCase& c) { c.indptr()[1] = 7; })},
        {"StartsEndBeyond", "kv_indptr ends at 15; it must end at 14 or less", compressed,
         values([](CacheCase& c) { c.indptr()[3] = 15; })},
        {"LastPageEmpty", "kv_last_page_len is 0 for sequence 0; allowed are 1 to 16", compressed,
         values([](CacheCase& c) { c.last_page_len()[0] = 0; })},
        {"LastPageTooLong", "kv_last_page_len is 17 for sequence 2", compressed,
         values([](CacheCase& c) { c.last_page_len()[2] = 17; })},
    };
    return all;
}

const std::vector<BadCache>& bad_tables()
{
    using enum CacheForm;
    static const std::vector<BadCache> all{
        {"TableOfAnotherBatch", "block_table is int32 [2, 4]; it must be int32 [3, 4]", block_table,
         [](CacheCase& c, ForwardArgs&, Options& o) {
             o.block_table = shaped(c, DType::int32, {2, 4});
         }},
        {"TableOfOneAxis", "block_table is int32 [12]; it must be int32 [batch, pages]", block_table,
         [](CacheCase& c, ForwardArgs&, Options& o) { o.block_table = shaped(c, DType::int32, {12}); }},
        {"TableOfInt64", "block_table is int64 [3, 4]", block_table,
         [](CacheCase& c, ForwardArgs&, Options& o) {
             o.block_table = shaped(c, DType::int64, {3, 4});
         }},
        {"TableWithoutEnd", "block_table has 1073741825 pages", block_table,
         [](CacheCase& c, ForwardArgs&, Options& o) {
             o.block_table = shaped(c, DType::int32, {3, (1 << 30) + 1});
         }},
        {"TableOfTooManyRows", "block_table has 17179869184 rows in the pages of a sequence", block_table,
         [](CacheCase& c, ForwardArgs&, Options& o) {
             o.block_table = shaped(c, DType::int32, {3, 1 << 30});
         }},
        {"LengthsOfAnotherBatch", "cache_seqlens is int32 [4]", block_table,
         [](CacheCase& c, ForwardArgs&, Options& o) { o.cache_seqlens = shaped(c, DType::int32, {4}); }},
        {"TableOnADevice", "block_table is in device memory", block_table,
         [](CacheCase&, ForwardArgs&, Options& o) { o.block_table.memory = Memory::device; }},
        {"TableIsNull", "block_table has shape [3, 4] but its data is null", block_table,
         [](CacheCase&, ForwardArgs&, Options& o) { o.block_table.data = nullptr; }},
        {"CacheOfAnotherBatch", "k has 4 sequences but q has 3", batch_index,
         [](CacheCase&, ForwardArgs&, Options& o) { o.cache_batch_index = {}; }},
        {"PagesWithoutRows", "pages of 0 rows", block_table,
         [](CacheCase&, ForwardArgs& a, Options&) { a.k.shape[1] = a.v.shape[1] = 0; }},
        {"PagesOfKAndVDiffer", "v has shape [14, 16, 2, 24] but k has [15, 16, 2, 32]", block_table,
         [](CacheCase&, ForwardArgs& a, Options&) { a.v.shape[0] = 14; }},
        {"PackedPages", "k has 3 axes, [240, 2, 32]; it must be [pages, page_size, heads, head_dim]", block_table,
         [](CacheCase&, ForwardArgs& a, Options&) {
             a.k = ConstTensorView::contiguous(a.k.data, DType::float32, {240, 2, 32});
         }},
        {"BoundariesOfKeys", "cu_seqlens_k was given with cache_seqlens", block_table,
         [](CacheCase& c, ForwardArgs&, Options& o) { o.cu_seqlens_k = shaped(c, DType::int32, {4}); }},
        {"TwoTables", "block_table was given with kv_indices", block_table,
         [](CacheCase& c, ForwardArgs&, Options& o) {
             const Options other = c.options(compressed);
             o.cache_seqlens = {};
             o.kv_indptr = other.kv_indptr;
             o.kv_indices = other.kv_indices;
             o.kv_last_page_len = other.kv_last_page_len;
         }},
        {"PagesAndAnIndex", "cache_batch_index was given with block_table", block_table,
         [](CacheCase& c, ForwardArgs&, Options& o) {
             o.cache_batch_index = c.options(batch_index).cache_batch_index;
         }},
        {"IndicesAlone", "kv_indptr was not given", compressed,
         [](CacheCase&, ForwardArgs&, Options& o) { o.kv_indptr = {}; }},
        {"LengthsTwice", "cache_seqlens was given with kv_indices", compressed,
         [](CacheCase& c, ForwardArgs&, Options& o) { o.cache_seqlens = c.options(contiguous).cache_seqlens; }},
        {"MaskWithoutNk", "key_padding_mask was given with kv_indices", compressed,
         [](CacheCase& c, ForwardArgs&, Options& o) {
             c.attention.add_key_padding();
             o.key_padding_mask = c.attention.options.key_padding_mask;
         }},
        {"MaskOfPairsWithoutNk", "mask was given with kv_indices", compressed,
         [](CacheCase& c, ForwardArgs&, Options& o) {
             o.mask = shaped(c, DType::boolean, {1, 1, 5, 64});
         }},
        {"BlockMaskWithoutNk", "block_mask was given with kv_indices", compressed,
         [](CacheCase&, ForwardArgs&, Options& o) { o.block_mask = BlockMask::chunked(64, 8); }},
        {"BiasWithoutNk", "bias was given with kv_indices", compressed,
         [](CacheCase& c, ForwardArgs&, Options& o) {
             c.attention.add_bias();
             o.bias = c.attention.options.bias;
         }},
    };
    return all;
}

std::vector<BadCache> everything()
{
    std::vector<BadCache> all = bad_values();
    all.insert(all.end(), bad_tables().begin(), bad_tables().end());
    return all;
}

CacheCase good_case()
{
    return {{3, 4, 2, 5, 64, 32, 24}, {20, 0, 64}, 16, DType::float32, 3};
}

class BadCaches : public ::testing::TestWithParam<BadCache> {};

TEST_P(BadCaches, AreRefusedByName)
{
    const BadCache& bad = GetParam();
    for (const Backend backend : {Backend::openmp, Backend::reference}) {
        CacheCase cached = good_case();
        ForwardArgs args = cached.args(bad.form);
        Options options = cached.options(bad.form);
        options.backend = backend;
        bad.spoil(cached, args, options);
        expect_refused(bad.says, [&] { forward(args, options); });
        EXPECT_TRUE(is_poison(cached.attention.o));
        EXPECT_TRUE(is_poison(cached.attention.lse));
    }
}

INSTANTIATE_TEST_SUITE_P(All, BadCaches, ::testing::ValuesIn(everything()),
                         [](const auto& one) { return std::string(one.param.name); });

class BadCacheOfARun : public ::testing::TestWithParam<BadCache> {};

TEST_P(BadCacheOfARun, IsRefusedAndTheNextRunIsNot)
{
    const BadCache& bad = GetParam();
    CacheCase cached = good_case();
    ForwardArgs args = cached.args(bad.form);
    Options options = cached.options(bad.form);
    options.device.kind = Device::Kind::host;
    PreparedForward call = prepare(args, options);
    RunMemory memory(call.workspace_bytes());
    const std::span<std::byte> workspace = memory.span();
    bad.spoil(cached, args, options);
    expect_refused(bad.says, [&] { call.run(args, workspace); });
    EXPECT_TRUE(is_poison(cached.attention.o));
    EXPECT_TRUE(is_poison(cached.attention.lse));
    cached.set_lengths(cached.lengths()); // in the same memory
    call.run(args, workspace);
    EXPECT_FALSE(is_poison(cached.attention.o));
}

INSTANTIATE_TEST_SUITE_P(Values, BadCacheOfARun, ::testing::ValuesIn(bad_values()),
                         [](const auto& one) { return std::string(one.param.name); });

TEST(BadCache, HasNoGradients)
{
    AttentionCase attention({2, 4, 2, 5, 30, 16, 16}, DType::float32, 4);
    attention.poison_outputs();
    const std::vector<std::int32_t> lengths{3, 4};
    Options options;
    options.cache_seqlens = ConstTensorView::contiguous(std::span(lengths), {2});
    expect_refused("cache_seqlens was given to backward", [&] { backward(attention.backward_args(), options); });
    EXPECT_TRUE(is_poison(attention.dq));
}

TEST(GoodCache, MayHaveNoPagesNoKeysAndNoSequences)
{
    CacheCase cached({2, 2, 1, 3, 16, 8, 8}, {0, 0}, 16, DType::float32, 5);
    for (const CacheForm form : cache_forms) {
        forward(cached.args(form), cached.options(form));
        for (const double lse : doubles(cached.attention.lse)) {
            EXPECT_EQ(lse, -std::numeric_limits<double>::infinity());
        }
        for (const double o : doubles(cached.attention.o)) {
            EXPECT_EQ(o, 0.0);
        }
    }
    ForwardArgs args = cached.args(CacheForm::block_table);
    Options options = cached.options(CacheForm::block_table);
    options.block_table.shape[1] = 0;
    forward(args, options);
    EXPECT_FALSE(is_poison(cached.attention.lse));
    for (TensorView* const view : {&args.o, &args.lse}) {
        view->shape[0] = 0;
    }
    args.q.shape[0] = options.block_table.shape[0] = options.cache_seqlens.shape[0] = 0;
    forward(args, options);
}

/// What is wrong with a cache of 8 bits, scales of pages and the tables of a block_table.
struct BadQuantised {
    const char* name;
    const char* says;
    std::function<void(CacheCase&, ForwardArgs&, Options&)> spoil;
};

void PrintTo(const BadQuantised& bad, std::ostream* out)
{
    *out << bad.name;
}

class BadQuantisedCaches : public ::testing::TestWithParam<BadQuantised> {};

TEST_P(BadQuantisedCaches, AreRefusedByName)
{
    for (const Backend backend : {Backend::openmp, Backend::reference}) {
        CacheCase cached = good_case();
        cached.quantise(DType::int8, ScaledBy::pages);
        ForwardArgs args = cached.args(CacheForm::block_table);
        Options options = cached.options(CacheForm::block_table);
        options.backend = backend;
        GetParam().spoil(cached, args, options);
        expect_refused(GetParam().says, [&] { forward(args, options); });
        EXPECT_TRUE(is_poison(cached.attention.o));
        EXPECT_TRUE(is_poison(cached.attention.lse));
    }
}

INSTANTIATE_TEST_SUITE_P(
    All, BadQuantisedCaches,
    ::testing::Values(
        BadQuantised{"ScaleOfNan", "k_scale is nan for page",
                     [](CacheCase& c, ForwardArgs&, Options&) {
                         c.page_scales()[2 * c.table()[9]] = std::numeric_limits<float>::quiet_NaN();
                     }},
        BadQuantised{"ScaleOfZero", "key head 1; it must be a finite number above 0",
                     [](CacheCase& c, ForwardArgs&, Options&) { c.page_scales()[2 * c.table()[0] + 1] = 0.0F; }},
        BadQuantised{"ScaleBelowZero", "k_scale is -1 for page",
                     [](CacheCase& c, ForwardArgs&, Options&) { c.page_scales()[2 * c.table()[0]] = -1.0F; }},
        BadQuantised{"ScaleOfInfinity", "v_scale is inf for key head 0",
                     [](CacheCase& c, ForwardArgs&, Options& o) {
                         std::fill_n(static_cast<float*>(c.attention.q.data()), 2,
                                     std::numeric_limits<float>::infinity());
                         o.v_scale = shaped(c, DType::float32, {2});
                     }},
        BadQuantised{"ScaleOfFloat16", "k_scale is float16 [15, 2]; it must be float32 [15, 2]",
                     [](CacheCase&, ForwardArgs&, Options& o) { o.k_scale.dtype = DType::float16; }},
        BadQuantised{"ScaleOfSequences",
                     "v_scale is float32 [3, 2]; it must be float32 [15, 2], like [heads_kv] or [pages, heads_kv]",
                     [](CacheCase&, ForwardArgs&, Options& o) { o.v_scale.shape[0] = 3; }},
        BadQuantised{"ScaleOfOtherHeads", "k_scale is float32 [4]; it must be float32 [2]",
                     [](CacheCase& c, ForwardArgs&, Options& o) { o.k_scale = shaped(c, DType::float32, {4}); }},
        BadQuantised{"ScaleOfQueries", "q_scale was given, but q is float32",
                     [](CacheCase& c, ForwardArgs&, Options& o) { o.q_scale = shaped(c, DType::float32, {4}); }},
        BadQuantised{"TwoTypes", "v is float8_e4m3 but k is int8; k and v must have one dtype",
                     [](CacheCase&, ForwardArgs& a, Options&) { a.v.dtype = DType::float8_e4m3; }},
        BadQuantised{"WideValues", "v is float32 but k is int8",
                     [](CacheCase&, ForwardArgs& a, Options&) { a.v.dtype = DType::float32; }},
        BadQuantised{"QueriesOfInt8", "q is int8; it must be float32, bfloat16 or float16",
                     [](CacheCase&, ForwardArgs& a, Options&) { a.q.dtype = DType::int8; }},
        BadQuantised{"QueriesOfFloat8", "k is int8 but q is float8_e4m3",
                     [](CacheCase&, ForwardArgs& a, Options&) { a.q.dtype = DType::float8_e4m3; }},
        BadQuantised{"BoundariesOfKeys", "cu_seqlens_k was given with k of 8 bits",
                     [](CacheCase& c, ForwardArgs& a, Options& o) {
                         o = {};
                         a.k = c.args(CacheForm::contiguous).k;
                         a.v = c.args(CacheForm::contiguous).v;
                         o.cu_seqlens_k = shaped(c, DType::int32, {4});
                     }},
        BadQuantised{"AnotherBatch", "k has 15 sequences but q has 3",
                     [](CacheCase&, ForwardArgs&, Options& o) { o = {}; }}),
    [](const auto& one) { return std::string(one.param.name); });

TEST(BadQuantisedCache, HasNoGradients)
{
    CacheCase cached = good_case();
    cached.quantise(DType::int8, ScaledBy::heads);
    BackwardArgs args;
    args.q = std::as_const(cached.attention.q).view();
    args.k = std::as_const(cached.attention.k).view();
    args.v = std::as_const(cached.attention.v).view();
    expect_refused("k is int8, which only the forward pass takes", [&] { backward(args, {}); });
}

TEST(BadQuantisedCache, HasScalesThatRunsOfAPreparedCallRefuse)
{
    for (const ScaledBy scaled : {ScaledBy::pages, ScaledBy::heads}) {
        for (const float scale : {0.0F, -1.0F, std::numeric_limits<float>::quiet_NaN()}) {
            CacheCase cached = good_case();
            cached.quantise(DType::int8, scaled);
            const ForwardArgs args = cached.args(CacheForm::block_table);
            Options options = cached.options(CacheForm::block_table);
            std::vector<float> scales(2 * 15, 1.0F);
            options.v_scale = TensorView::contiguous(scales.data(), DType::float32, {2});
            if (scaled == ScaledBy::pages) {
                options.v_scale = TensorView::contiguous(scales.data(), DType::float32, {15, 2});
            }
            PreparedForward call = prepare(args, options);
            RunMemory memory(call.workspace_bytes());
            const auto run = [&] { call.run(args, options, memory.span()); };
            EXPECT_NO_THROW(run());
            std::fill(scales.begin(), scales.end(), scale);
            expect_refused("v_scale is ", run);
        }
    }
}

TEST(GoodQuantisedCache, HasScalesOfNobodyThatNobodyReads)
{
    CacheCase cached = good_case();
    cached.quantise(DType::int8, ScaledBy::pages); // NaN for pages of nobody
    forward(cached.args(CacheForm::block_table), cached.options(CacheForm::block_table));
    for (const double o : doubles(cached.attention.o)) {
        EXPECT_TRUE(std::isfinite(o));
    }
}

TEST(GoodCache, HasNoScalesWithoutEightBits)
{
    CacheCase cached = good_case();
    const ForwardArgs args = cached.args(CacheForm::block_table);
    Options options = cached.options(CacheForm::block_table);
    options.k_scale = shaped(cached, DType::float32, {2});
    expect_refused("k_scale was given, but k is float32; it is allowed with k and v of float8_e4m3 or int8",
                   [&] { forward(args, options); });
}

} // namespace
} // namespace flashomp::testing
