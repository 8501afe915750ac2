// Caches of float8_e4m3 and int8: the results of the numbers that elements and scales stand for, in every form; and
// append(), which rounds to them.
#include "support/cache_test.hpp"

#include "flashomp/cache.hpp"

#include <cmath>
#include <limits>
#include <vector>

namespace flashomp::testing {
namespace {

constexpr std::array narrow_dtypes{DType::float8_e4m3, DType::int8};
constexpr std::array wide_dtypes{DType::float32, DType::bfloat16, DType::float16};

class QuantisedCaches : public CacheTest {};

INSTANTIATE_TEST_SUITE_P(Machines, QuantisedCaches, ::testing::ValuesIn(targets()), target_name);

/// To the bit of each other where scales are of heads or sequences, and near float64's results of elements times
/// scales, with the bounds of q's dtype.
TEST_P(QuantisedCaches, HaveTheReferencesResultsInEveryForm)
{
    const std::vector<Features> all{with({}), with({Feature::bottom_right, Feature::grouped_heads}),
                                    with({Feature::window, Feature::alibi, Feature::value_head_dim}),
                                    with({Feature::softcap, Feature::bias, Feature::sink, Feature::grouped_heads})};
    std::uint64_t seed = 500;
    for (const Features& features : all) {
        for (const std::int64_t queries : {1, 5, 70}) {
            for (const DType dtype : wide_dtypes) {
                for (const DType narrow : narrow_dtypes) {
                    for (const ScaledBy by :
                         {ScaledBy::nothing, ScaledBy::heads, ScaledBy::sequences, ScaledBy::pages}) {
                        SCOPED_TRACE(::testing::Message()
                                     << names(features) << ", " << queries << " queries, " << name_of(dtype) << ", "
                                     << name_of(narrow) << ", scales " << static_cast<int>(by) << ", seed " << seed);
                        CacheCase cached = cache_case_with(features, dtype, seed++, queries);
                        cached.attention.options.scale = by == ScaledBy::nothing ? 1e-3 : 0.2;
                        cached.quantise(narrow, by);
                        const CacheForm first = by == ScaledBy::pages ? CacheForm::block_table : CacheForm::contiguous;
                        const Outputs expected = run(cached, first);
                        expect_close(cached, first, expected);
                        for (const CacheForm form : cache_forms) {
                            const bool has_pages = form == CacheForm::block_table || form == CacheForm::compressed;
                            if (takes(cached.attention.options, form) && (by != ScaledBy::pages || has_pages)) {
                                SCOPED_TRACE(static_cast<int>(form));
                                expect_same(run(cached, form), expected);
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Where all products are numbers of q's dtype, a cache of 8 bits has the bits of one that holds the products, on the
/// same machine. On GPUs 8 bits are for the plain one.
TEST_P(QuantisedCaches, HaveTheBitsOfACacheOfTheProducts)
{
    for (const std::int64_t queries : {1, 3, 40}) {
        for (const DType dtype : wide_dtypes) {
            for (const DType narrow : narrow_dtypes) {
                for (const ScaledBy by : {ScaledBy::heads, ScaledBy::pages}) {
                    SCOPED_TRACE(::testing::Message() << queries << " queries, " << name_of(dtype) << ", "
                                                      << name_of(narrow) << ", " << static_cast<int>(by));
                    CacheCase cached({2, 4, 2, queries, 320, 72, 40}, {301, 70}, 16, dtype, 41);
                    cached.quantise(narrow, by, true);
                    CacheCase wide({2, 4, 2, queries, 320, 72, 40}, {301, 70}, 16, dtype, 41);
                    wide.attention.k = cached.products(cached.attention.k, cached.k_scales(), dtype);
                    wide.attention.v = cached.products(cached.attention.v, cached.v_scales(), dtype);
                    wide.set_lengths(wide.lengths());
                    const Outputs expected =
                        target_.is_device ? run_plain(wide, CacheForm::block_table) : run(wide, CacheForm::block_table);
                    expect_same(run(cached, CacheForm::block_table), expected);
                }
            }
        }
    }
}

TEST_P(QuantisedCaches, SplitTheKeysOfOneQueryAlike)
{
    for (const DType narrow : narrow_dtypes) {
        CacheCase cached({2, 4, 2, 1, 9008, 64, 64}, {9008, 4097}, 16, DType::bfloat16, 42);
        cached.quantise(narrow, ScaledBy::sequences);
        const Outputs expected = run(cached, CacheForm::contiguous);
        expect_close(cached, CacheForm::contiguous, expected);
        expect_same(run(cached, CacheForm::block_table), expected);
    }
}

/// The rows of a block are those of several key heads, on the host.
TEST_P(QuantisedCaches, EveryHeadHasItsOwnScales)
{
    std::uint64_t seed = 700;
    for (const DType dtype : {DType::float32, DType::bfloat16}) { // whose products differ
        for (const DType narrow : narrow_dtypes) {
            for (const ScaledBy by : {ScaledBy::heads, ScaledBy::sequences, ScaledBy::pages}) {
                for (const std::int64_t page_size : {1, 33}) {
                    SCOPED_TRACE(::testing::Message() << name_of(dtype) << ", " << name_of(narrow) << ", scales "
                                                      << static_cast<int>(by) << ", page_size " << page_size);
                    CacheCase cached({6, 16, 8, 1, 132, 40, 72}, {1, 0, 33, 100, 132, 17}, page_size, dtype, seed++,
                                     page_size == 33);
                    cached.quantise(narrow, by);
                    const CacheForm form = by == ScaledBy::sequences ? CacheForm::batch_index : CacheForm::block_table;
                    expect_close(cached, form, run(cached, form));
                }
            }
        }
    }
}

/// All 256 codes as elements of a key and of a value, with few queries and with many. Rows of q have a 1 in the column
/// of their number, so that their score is that element; each sees that one key, so that o is the value.
TEST_P(QuantisedCaches, EveryCodeIsItsNumber)
{
    constexpr std::int64_t codes = 256;
    for (const DType dtype : wide_dtypes) {
        HostTensor one_hot(DType::float32, {1, codes, 1, codes});
        for (std::int64_t i = 0; i < codes; ++i) {
            static_cast<float*>(one_hot.data())[i * codes + i] = 1.0F;
        }
        const HostTensor rows = dtype == DType::float32 ? std::move(one_hot) : io::converted(one_hot, dtype);
        for (const DType narrow : narrow_dtypes) {
            for (const std::int64_t queries : {std::int64_t{1}, std::int64_t{8}, codes}) {
                SCOPED_TRACE(::testing::Message()
                             << name_of(dtype) << ", " << name_of(narrow) << ", " << queries << " queries");
                HostTensor key(narrow, {1, 1, 1, codes});
                std::vector<double> numbers(codes);
                const auto put = [&](std::int64_t i, std::uint8_t code) {
                    static_cast<std::uint8_t*>(key.data())[i] = code;
                    numbers[static_cast<std::size_t>(i)] = narrow == DType::int8
                                                               ? static_cast<std::int8_t>(code)
                                                               : static_cast<double>(float_from_float8_e4m3(code));
                };
                for (std::int64_t i = 0; i < codes; ++i) {
                    const bool is_nan = narrow == DType::float8_e4m3 && (i & 0x7F) == 0x7F;
                    put(i, is_nan ? 0 : static_cast<std::uint8_t>(i));
                }
                const std::vector<std::int32_t> first(static_cast<std::size_t>(codes / queries));
                HostTensor o(dtype, {codes / queries, queries, 1, codes}, Fill::poison);
                HostTensor lse(DType::float32, {codes / queries, 1, queries}, Fill::poison);
                const auto call = [&] {
                    Options options;
                    options.cache_batch_index = ConstTensorView::contiguous(std::span(first), {codes / queries});
                    options.scale = 1.0;
                    ConstTensorView q = rows.view();
                    q.shape = {codes / queries, queries, 1, codes};
                    q.strides = {queries * codes, codes, codes, 1};
                    return forward({q, std::as_const(key).view(), std::as_const(key).view(), o.view(), lse.view()},
                                   on_target(options));
                };
                EXPECT_FALSE(call().computed_twice);
                const std::vector<double> values = doubles(o), scores = doubles(lse);
                for (std::size_t i = 0; i < values.size(); ++i) {
                    ASSERT_EQ(values[i], numbers[i % codes]) << "row " << i / codes << ", code " << i % codes;
                }
                for (std::size_t i = 0; i < scores.size(); ++i) {
                    ASSERT_NEAR(scores[i], numbers[i], 1e-6 * std::abs(numbers[i])) << "code " << i;
                }
                if (narrow == DType::float8_e4m3) { // NaNs of either sign
                    put(5, 0x7F);
                    put(253, 0xFF);
                    EXPECT_TRUE(call().computed_twice);
                    for (const double score : doubles(lse)) {
                        ASSERT_TRUE(std::isnan(score));
                    }
                }
            }
        }
    }
}

/// k and v of 8 bits alone make a cache, whose sequences have all its rows.
TEST_P(QuantisedCaches, NeedNoTable)
{
    for (const DType narrow : narrow_dtypes) {
        for (const std::int64_t queries : {1, 20}) {
            CacheCase cached({2, 4, 2, queries, 48, 32, 32}, {48, 48}, 16, DType::float32, 43);
            cached.quantise(narrow, ScaledBy::sequences);
            cached.attention.options.causal = Causal::bottom_right;
            const Outputs expected = run(cached, CacheForm::contiguous);
            const ForwardArgs args = cached.args(CacheForm::contiguous);
            Options options = options_of(cached, CacheForm::contiguous);
            options.cache_seqlens = {};
            forward(args, options);
            expect_same({std::move(cached.attention.o), std::move(cached.attention.lse)}, expected);
        }
    }
}

/// A NaN of float8_e4m3 in a row reaches the queries that see the row, and no others.
TEST_P(QuantisedCaches, KeepANanToTheRowsThatSeeIt)
{
    CacheCase cached({1, 2, 1, 8, 48, 32, 32}, {40}, 16, DType::float32, 44);
    cached.attention.options.causal = Causal::bottom_right;
    cached.quantise(DType::float8_e4m3, ScaledBy::pages);
    const Outputs clean = run(cached, CacheForm::block_table);
    static_cast<std::uint8_t*>(cached.attention.v.data())[37 * 32 + 3] = 0x7F; // seen by queries 5, 6 and 7
    cached.set_lengths({40});
    const Report report = forward(cached.args(CacheForm::block_table), options_of(cached, CacheForm::block_table));
    EXPECT_TRUE(report.computed_twice);
    const std::vector<double> o = doubles(cached.attention.o), before = doubles(clean.o);
    for (std::size_t i = 0; i < o.size(); ++i) {
        const std::size_t query = i / 64;
        if (query >= 5 && i % 32 == 3) {
            EXPECT_TRUE(std::isnan(o[i])) << i;
        } else {
            EXPECT_NEAR(o[i], before[i], 1e-5) << i;
        }
    }
}

/// The cache after append(), by float64: divided by the scale, to nearest, ties to even, at most the largest number.
class AppendQuantised : public TargetTest, public ::testing::WithParamInterface<DType> {
protected:
    [[nodiscard]] static std::uint8_t rounded(DType narrow, double x)
    {
        if (narrow == DType::int8) {
            const double within = std::isnan(x) ? 0.0 : std::nearbyint(std::clamp(x, -127.0, 127.0));
            return static_cast<std::uint8_t>(static_cast<std::int8_t>(within));
        }
        return float8_e4m3_from(std::isnan(x) ? x : std::clamp(x, -most_float8_e4m3, most_float8_e4m3));
    }
};

INSTANTIATE_TEST_SUITE_P(Types, AppendQuantised, ::testing::ValuesIn(narrow_dtypes),
                         [](const auto& one) { return std::string(name_of(one.param)); });

TEST_P(AppendQuantised, RoundsAsFloat64Does)
{
    const DType narrow = GetParam();
    for (const DType dtype : wide_dtypes) {
        for (const ScaledBy by : {ScaledBy::nothing, ScaledBy::heads, ScaledBy::pages}) {
            SCOPED_TRACE(::testing::Message() << name_of(dtype) << ", " << static_cast<int>(by));
            // After 14 and 0 keys: new rows go to the first pages, and of sequence 0 to the second, too.
            CacheCase cached({2, 2, 2, 1, 32, 24, 16}, {17, 3}, 16, dtype, 45);
            const HostTensor k = HostTensor::copy_of(std::as_const(cached.attention.k).view());
            const HostTensor v = HostTensor::copy_of(std::as_const(cached.attention.v).view());
            cached.quantise(narrow, by);
            ForwardArgs at = cached.args(CacheForm::block_table);
            const HostTensor k_after = HostTensor::copy_of(at.k), v_after = HostTensor::copy_of(at.v);
            const auto rows_of = [](const HostTensor& all) {
                const io::Shape& s = all.shape();
                HostTensor rows(all.dtype(), {2, 3, s[2], s[3]});
                const std::int64_t bytes = size_of(all.dtype()) * s[2] * s[3];
                for (const auto& [b, first] : {std::pair{0, 14}, std::pair{1, 0}}) {
                    std::memcpy(static_cast<char*>(rows.data()) + b * 3 * bytes,
                                static_cast<const char*>(all.data()) + (b * s[1] + first) * bytes,
                                static_cast<std::size_t>(3 * bytes));
                }
                return rows;
            };
            const HostTensor new_k = rows_of(k), new_v = rows_of(v);
            // What is there before has no part in it.
            HostTensor k_cache(narrow, k_after.shape(), Fill::poison), v_cache(narrow, v_after.shape(), Fill::poison);
            const std::vector<std::int32_t> before{14, 0};
            Options options = cached.options(CacheForm::block_table);
            options.cache_seqlens = ConstTensorView::contiguous(std::span(before), {2});
            append({new_k.view(), new_v.view(), k_cache.view(), v_cache.view()}, options);
            const auto compare = [&](const HostTensor& cache, const HostTensor& rows,
                                     const std::vector<float>& scales) {
                const std::vector<double> values = doubles(rows);
                const io::Shape& s = cache.shape(); // [pages, row, head, depth]
                for (std::int64_t b = 0; b < 2; ++b) {
                    for (std::int64_t i = 0; i < 3 * s[2] * s[3]; ++i) {
                        const std::int64_t place = before[static_cast<std::size_t>(b)] + i / s[3] / s[2];
                        const std::int64_t head = i / s[3] % s[2];
                        const std::int64_t page = cached.table()[b * 2 + place / 16];
                        const float scale = scales[static_cast<std::size_t>((b * 2 + place / 16) * s[2] + head)];
                        // float32, as documented: the quotient is rounded, too.
                        const float x = static_cast<float>(values[static_cast<std::size_t>(b * 3 * s[2] * s[3] + i)]);
                        const std::int64_t to = ((page * 16 + place % 16) * s[2] + head) * s[3] + i % s[3];
                        EXPECT_EQ(int{static_cast<const std::uint8_t*>(cache.data())[to]},
                                  int{rounded(narrow, static_cast<double>(x / scale))});
                    }
                }
            };
            compare(k_cache, new_k, cached.k_scales());
            compare(v_cache, new_v, cached.v_scales());
        }
    }
}

TEST_P(AppendQuantised, TakesTiesToEvenAndStopsAtTheLargestNumber)
{
    const DType narrow = GetParam();
    constexpr float infinity = std::numeric_limits<float>::infinity();
    const std::vector<float> x{0.0F,   0.5F,     1.5F,     2.5F,      -0.5F,     -1.5F,   -2.5F,    126.5F,
                               127.4F, 127.5F,   -127.5F,  -128.5F,   1e30F,     -1e30F,  infinity, -infinity,
                               NAN,    0x1p-10F, 0x3p-10F, -0x1p-10F, 17.0F,     19.0F,   448.0F,   463.9F,
                               464.0F, 464.1F,   -448.0F,  -500.0F,   0x1.1p-6F, 0.0137F, 240.0F,   0x1p-40F};
    const auto count = std::ssize(x);
    HostTensor cache(narrow, {1, 2, 1, count}, Fill::poison), other(narrow, {1, 2, 1, count}, Fill::poison);
    const std::vector<std::int32_t> lengths{1};
    Options options;
    options.cache_seqlens = ConstTensorView::contiguous(std::span(lengths), {1});
    const ConstTensorView rows = ConstTensorView::contiguous(std::span(x), {1, 1, 1, count});
    append({rows, rows, cache.view(), other.view()}, options);
    for (std::size_t i = 0; i < x.size(); ++i) {
        const int got = static_cast<const std::uint8_t*>(cache.data())[x.size() + i];
        const int wanted = rounded(narrow, static_cast<double>(x[i]));
        EXPECT_EQ(narrow == DType::float8_e4m3 && std::isnan(x[i]) ? got & 0x7F : got, wanted) << x[i];
        EXPECT_EQ(int{static_cast<const std::uint8_t*>(cache.data())[i]}, 0xFF); // row 0 is not touched
    }
}

/// Rows that turn are turned in float32 and rounded once, and q is not rounded to 8 bits.
TEST_P(AppendQuantised, TurnsBeforeItRounds)
{
    const DType narrow = GetParam();
    CacheCase cached({1, 2, 1, 2, 16, 16, 8}, {5}, 16, DType::float32, 46);
    HostTensor cos = random_tensor(cached.attention.random(), DType::float32, {16, 8});
    HostTensor sin = random_tensor(cached.attention.random(), DType::float32, {16, 8});
    const auto appended = [&](DType dtype, const HostTensor& scales, HostTensor& q_out) {
        HostTensor k_cache(dtype, {1, 16, 1, 16}, Fill::poison), v_cache(dtype, {1, 16, 1, 8}, Fill::poison);
        AppendArgs args{std::as_const(cached.attention.k).view(), std::as_const(cached.attention.v).view(),
                        k_cache.view(), v_cache.view()};
        args.k.shape[1] = args.v.shape[1] = 2;
        args.rotary = {std::as_const(cos).view(), std::as_const(sin).view(), true};
        args.q = std::as_const(cached.attention.q).view();
        args.q_out = q_out.view();
        Options options = cached.options(CacheForm::contiguous);
        if (dtype == narrow) {
            options.k_scale = scales.view();
        }
        append(args, options);
        return k_cache;
    };
    HostTensor scales(DType::float32, {1});
    *static_cast<float*>(scales.data()) = 0x1p-6F;
    HostTensor q_wide(DType::float32, cached.attention.q.shape(), Fill::poison);
    HostTensor q_narrow(DType::float32, cached.attention.q.shape(), Fill::poison);
    const HostTensor wide = appended(DType::float32, scales, q_wide);
    const HostTensor eight = appended(narrow, scales, q_narrow);
    EXPECT_TRUE(same_bits(q_wide, q_narrow));
    for (std::int64_t i = 5 * 16; i < 7 * 16; ++i) {
        EXPECT_EQ(int{static_cast<const std::uint8_t*>(eight.data())[i]},
                  int{rounded(narrow, static_cast<double>(static_cast<const float*>(wide.data())[i] / 0x1p-6F))});
    }
}

} // namespace
} // namespace flashomp::testing
