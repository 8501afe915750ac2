// append(): new keys go to their place and nowhere else, turned as float64 turns them; what may not be written is
// refused with nothing written.
#include "support/cache_case.hpp"
#include "support/on_device.hpp"
#include "support/target.hpp"
#include "unit/refusal.hpp"

#include "flashomp/block_mask.hpp"
#include "flashomp/cache.hpp"

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

namespace flashomp::testing {
namespace {

/// New rows of every sequence for a cache that has `before` of them already.
struct New {
    HostTensor k, v;
};

New rows_of(const AttentionCase& attention, const std::vector<std::int32_t>& before, std::int64_t count)
{
    const auto taken = [&](const HostTensor& all) {
        const io::Shape& s = all.shape();
        HostTensor rows(all.dtype(), {s[0], count, s[2], s[3]});
        const std::int64_t bytes = size_of(all.dtype()) * s[2] * s[3];
        for (std::int64_t b = 0; b < s[0]; ++b) {
            std::memcpy(static_cast<char*>(rows.data()) + b * count * bytes,
                        static_cast<const char*>(all.data()) + (b * s[1] + before[static_cast<std::size_t>(b)]) * bytes,
                        static_cast<std::size_t>(count * bytes));
        }
        return rows;
    };
    return {taken(attention.k), taken(attention.v)};
}

TensorView writable(const ConstTensorView& view)
{
    TensorView result;
    result.data = const_cast<void*>(view.data);
    result.dtype = view.dtype;
    result.rank = view.rank;
    result.shape = view.shape;
    result.strides = view.strides;
    return result;
}

bool have_same_bits(const ConstTensorView& a, const ConstTensorView& b)
{
    return same_bits(HostTensor::copy_of(a), HostTensor::copy_of(b));
}

class Append : public TargetTest, public ::testing::WithParamInterface<CacheForm> {};

/// The cache after an append is, to the bit and NaN of nobody's included, the cache that was filled at once.
TEST_P(Append, WritesWhatACacheThatWasFilledAtOnceHolds)
{
    const CacheForm form = GetParam();
    for (const DType dtype : {DType::float32, DType::bfloat16, DType::float16}) {
        for (const std::int64_t page_size : {1, 5, 16}) {
            for (const std::int64_t count : {0, 1, 7}) {
                for (const bool is_hnd : {false, true}) {
                    SCOPED_TRACE(::testing::Message() << page_size << " rows a page, " << count << " new");
                    const Shape shape{3, 4, 2, 2, 80, 24, 16};
                    const auto added = static_cast<std::int32_t>(count);
                    const std::vector<std::int32_t> before{0, 33, 64};
                    const std::vector<std::int32_t> after{added, 33 + added, 64 + added};
                    CacheCase expected(shape, after, page_size, dtype, 17, is_hnd);
                    CacheCase cached(shape, before, page_size, dtype, 17, is_hnd);
                    const ForwardArgs at = cached.args(form);
                    const New rows = rows_of(cached.attention, before, count);
                    const AppendArgs args{rows.k.view(), rows.v.view(), writable(at.k), writable(at.v)};
                    // Tables that have the pages of the new rows; the compressed form counts them, too.
                    Options options = expected.options(form);
                    if (form != CacheForm::compressed) {
                        options.cache_seqlens = cached.options(form).cache_seqlens;
                    }
                    append(args, options);
                    const ForwardArgs wanted = expected.args(form);
                    EXPECT_TRUE(have_same_bits(at.k, wanted.k));
                    EXPECT_TRUE(have_same_bits(at.v, wanted.v));
                }
            }
        }
    }
}

TEST_P(Append, WritesRowsAsWideAsAttentionReads)
{
    const CacheForm form = GetParam();
    const std::vector<std::int32_t> before{20}, after{23};
    const Shape shape{1, 2, 1, 1, 32, most_head_dim, most_head_dim_v};
    CacheCase expected(shape, after, 16, DType::bfloat16, 23);
    CacheCase cached(shape, before, 16, DType::bfloat16, 23);
    const ForwardArgs at = cached.args(form);
    const New rows = rows_of(cached.attention, before, 3);
    Options options = expected.options(form);
    if (form != CacheForm::compressed) {
        options.cache_seqlens = cached.options(form).cache_seqlens;
    }
    append({rows.k.view(), rows.v.view(), writable(at.k), writable(at.v)}, options);
    EXPECT_TRUE(have_same_bits(at.k, expected.args(form).k));
    EXPECT_TRUE(have_same_bits(at.v, expected.args(form).v));
}

/// Values that are a view of the keys, as in latent attention, come with the keys.
TEST_P(Append, WritesKeysAloneWithoutValues)
{
    const CacheForm form = GetParam();
    const std::vector<std::int32_t> before{20, 0}, after{23, 3};
    const Shape shape{2, 2, 1, 1, 48, 40, 24};
    for (const DType dtype : {DType::float32, DType::bfloat16}) {
        CacheCase expected(shape, after, 16, dtype, 29);
        CacheCase cached(shape, before, 16, dtype, 29);
        const ForwardArgs at = cached.args(form);
        const HostTensor v_before = HostTensor::copy_of(at.v);
        const New rows = rows_of(cached.attention, before, 3);
        Options options = expected.options(form);
        if (form != CacheForm::compressed) {
            options.cache_seqlens = cached.options(form).cache_seqlens;
        }
        append({.k = rows.k.view(), .k_cache = writable(at.k)}, options);
        EXPECT_TRUE(have_same_bits(at.k, expected.args(form).k));
        EXPECT_TRUE(same_bits(HostTensor::copy_of(at.v), v_before));
    }
}

TEST_P(Append, TakesPackedRows)
{
    const CacheForm form = GetParam();
    const std::vector<std::int32_t> before{5, 0, 60}, counts{3, 0, 4};
    const std::vector<std::int32_t> after{8, 0, 64};
    const Shape shape{3, 2, 2, 2, 64, 16, 16};
    CacheCase expected(shape, after, 16, DType::float32, 18);
    CacheCase cached(shape, before, 16, DType::float32, 18);
    const AttentionCase starts({0, 2, 2, 0, 0, 16, 16}, Lengths{counts, counts}, DType::float32, 1);
    HostTensor k(DType::float32, {7, 2, 16});
    HostTensor v(DType::float32, {7, 2, 16});
    std::int64_t row = 0;
    for (std::size_t b = 0; b < counts.size(); ++b) {
        for (std::int64_t i = 0; i < counts[b]; ++i, ++row) {
            const auto from = (static_cast<std::int64_t>(b) * 64 + before[b] + i) * 32;
            for (auto [to, all] : {std::pair{&k, &cached.attention.k}, std::pair{&v, &cached.attention.v}}) {
                std::memcpy(static_cast<float*>(to->data()) + row * 32, static_cast<const float*>(all->data()) + from,
                            32 * sizeof(float));
            }
        }
    }
    const ForwardArgs at = cached.args(form);
    Options options = expected.options(form);
    if (form != CacheForm::compressed) {
        options.cache_seqlens = cached.options(form).cache_seqlens;
    }
    options.cu_seqlens_k = starts.cu_seqlens_k.view();
    append({std::as_const(k).view(), std::as_const(v).view(), writable(at.k), writable(at.v)}, options);
    const ForwardArgs wanted = expected.args(form);
    EXPECT_TRUE(have_same_bits(at.k, wanted.k));
    EXPECT_TRUE(have_same_bits(at.v, wanted.v));
}

std::string name_of_form(const ::testing::TestParamInfo<CacheForm>& info)
{
    constexpr std::array names{"contiguous", "batch_index", "block_table", "compressed"};
    return names.at(static_cast<std::size_t>(info.param));
}

INSTANTIATE_TEST_SUITE_P(Forms, Append, ::testing::ValuesIn(cache_forms), name_of_form);

/// Row `row` of x, turned by the angles of position t as float64 turns it.
std::vector<double> turned(std::vector<double> x, std::int64_t t, bool interleaved, const std::vector<double>& cos,
                           const std::vector<double>& sin, std::size_t pairs)
{
    const std::vector<double> before = x;
    for (std::size_t i = 0; i < pairs; ++i) {
        const std::size_t one = interleaved ? 2 * i : i;
        const std::size_t other = interleaved ? 2 * i + 1 : i + pairs;
        const double c = cos[static_cast<std::size_t>(t) * pairs + i];
        const double s = sin[static_cast<std::size_t>(t) * pairs + i];
        x[one] = before[one] * c - before[other] * s;
        x[other] = before[one] * s + before[other] * c;
    }
    return x;
}

std::vector<double> row_of(const std::vector<double>& all, std::int64_t row, std::int64_t depth)
{
    const auto first = all.begin() + row * depth;
    return {first, first + depth};
}

TEST(AppendWithRotary, TurnsKeysAndQueriesAsFloat64Does)
{
    for (const DType dtype : {DType::float32, DType::bfloat16, DType::float16}) {
        for (const DType angles : {DType::float32, dtype}) {
            for (const bool interleaved : {true, false}) {
                for (const Causal causal : {Causal::none, Causal::bottom_right}) {
                    const std::vector<std::int32_t> before{3, 20};
                    CacheCase cached({2, 4, 2, 3, 32, 24, 16}, before, 8, dtype, 19);
                    AttentionCase& attention = cached.attention;
                    const ForwardArgs at = cached.args(CacheForm::contiguous);
                    const New rows = rows_of(attention, before, 3);
                    constexpr std::int64_t pairs = 10; // 20 of the 24 elements turn
                    HostTensor cos = random_tensor(attention.random(), angles, {32, pairs});
                    HostTensor sin = random_tensor(attention.random(), angles, {32, pairs});
                    HostTensor q_out(dtype, attention.q.shape(), Fill::poison);
                    AppendArgs args{rows.k.view(), rows.v.view(), writable(at.k), writable(at.v)};
                    args.rotary = {std::as_const(cos).view(), std::as_const(sin).view(), interleaved};
                    args.q = std::as_const(attention.q).view();
                    args.q_out = q_out.view();
                    Options options = cached.options(CacheForm::contiguous);
                    options.causal = causal;
                    const std::vector<double> k = doubles(rows.k), q = doubles(attention.q);
                    append(args, options);
                    const std::vector<double> c = doubles(cos), s = doubles(sin);
                    const std::vector<double> cache = doubles(HostTensor::copy_of(at.k)), out = doubles(q_out);
                    const double bound = dtype == DType::float32 ? 1e-6 : (dtype == DType::float16 ? 4e-3 : 3e-2);
                    for (std::int64_t b = 0; b < 2; ++b) {
                        for (std::int64_t i = 0; i < 3; ++i) {
                            const std::int64_t place = before[static_cast<std::size_t>(b)] + i;
                            const std::int64_t of_q = causal == Causal::none ? place - i : place;
                            for (std::int64_t h = 0; h < 2; ++h) {
                                const auto wanted =
                                    turned(row_of(k, (b * 3 + i) * 2 + h, 24), place, interleaved, c, s, 10);
                                EXPECT_LT(max_error(row_of(cache, (b * 32 + place) * 2 + h, 24), wanted), bound);
                            }
                            for (std::int64_t h = 0; h < 4; ++h) {
                                const std::int64_t row = (b * 3 + i) * 4 + h;
                                const auto wanted = turned(row_of(q, row, 24), of_q, interleaved, c, s, 10);
                                EXPECT_LT(max_error(row_of(out, row, 24), wanted), bound);
                            }
                        }
                    }
                    // In place, with the same bits.
                    cached.set_lengths(before);
                    HostTensor in_place = HostTensor::copy_of(std::as_const(attention.q).view());
                    args.q = std::as_const(in_place).view();
                    args.q_out = in_place.view();
                    append(args, options);
                    EXPECT_TRUE(same_bits(in_place, q_out));
                }
            }
        }
    }
}

TEST(AppendThenAttend, IsAttentionToTheConcatenation)
{
    for (const CacheForm form : cache_forms) {
        const std::vector<std::int32_t> before{0, 7, 40}, after{5, 12, 45};
        const Shape shape{3, 6, 2, 5, 48, 32, 32};
        CacheCase expected(shape, after, 16, DType::bfloat16, 20);
        CacheCase cached(shape, before, 16, DType::bfloat16, 20);
        expected.attention.options.causal = Causal::bottom_right;
        forward(expected.args(form), expected.options(form));
        const ForwardArgs args = cached.args(form);
        const New rows = rows_of(cached.attention, before, 5);
        Options options = expected.options(form);
        const ConstTensorView lengths = options.cache_seqlens;
        if (form != CacheForm::compressed) {
            options.cache_seqlens = cached.options(form).cache_seqlens;
        }
        append({rows.k.view(), rows.v.view(), writable(args.k), writable(args.v)}, options);
        options.cache_seqlens = lengths;
        forward(args, options);
        EXPECT_TRUE(same_bits(cached.attention.o, expected.attention.o));
        EXPECT_TRUE(same_bits(cached.attention.lse, expected.attention.lse));
    }
}

class AppendThere : public EveryTargetTest {};

INSTANTIATE_TEST_SUITE_P(Machines, AppendThere, ::testing::ValuesIn(targets()), target_name);

/// A cache in a device's memory holds what the host's does, but for the last bits of what turned.
TEST_P(AppendThere, WritesWhatTheHostWrites)
{
    if (!target_.is_device) {
        GTEST_SKIP() << "the host is what is compared with";
    }
    const auto kind = target_.backend == Backend::cuda ? Space::Kind::cuda : Space::Kind::openmp;
    for (const DType dtype : {DType::float32, DType::bfloat16}) {
        const std::vector<std::int32_t> before{3, 20};
        CacheCase cached({2, 4, 2, 3, 32, 24, 16}, before, 8, dtype, 23);
        AttentionCase& attention = cached.attention;
        New rows = rows_of(attention, before, 3);
        HostTensor cos = random_tensor(attention.random(), DType::float32, {32, 10});
        HostTensor sin = random_tensor(attention.random(), DType::float32, {32, 10});
        Options options = cached.options(CacheForm::contiguous);
        options.causal = Causal::bottom_right;
        options.device.kind = Device::Kind::host;
        const auto make = [&](HostTensor& k, HostTensor& v, HostTensor& q, auto place) {
            AppendArgs args{place(rows.k), place(rows.v), place(k), place(v)};
            args.rotary = {place(cos), place(sin), true};
            args.q = place(attention.q);
            args.q_out = place(q);
            return args;
        };
        const auto cache_of = [&](std::int64_t depth) { return HostTensor(dtype, {2, 32, 2, depth}, Fill::poison); };
        HostTensor k = cache_of(24), v = cache_of(16), q(dtype, attention.q.shape(), Fill::poison);
        HostTensor k_there = cache_of(24), v_there = cache_of(16), q_there(dtype, attention.q.shape(), Fill::poison);
        append(make(k, v, q, [](HostTensor& tensor) { return tensor.view(); }), options);
        OnDevice device({kind, 0});
        const AppendArgs there =
            make(k_there, v_there, q_there, [&](HostTensor& tensor) { return device.place(tensor); });
        const Report report = append(there, on_target(options));
        EXPECT_TRUE(report.on_device);
        device.download();
        EXPECT_TRUE(same_bits(v_there, v));
        const auto expect_near = [](const HostTensor& a, const HostTensor& b) {
            const std::vector<double> x = doubles(a), y = doubles(b);
            for (std::size_t i = 0; i < x.size(); ++i) {
                EXPECT_TRUE((std::isnan(x[i]) && std::isnan(y[i])) || std::abs(x[i] - y[i]) < 2e-2) << i;
            }
        };
        expect_near(k_there, k);
        expect_near(q_there, q);
    }
}

struct BadAppend {
    const char* name;
    const char* says;
    CacheForm form;
    std::function<void(CacheCase&, AppendArgs&, Options&)> spoil;
};

void PrintTo(const BadAppend& bad, std::ostream* out)
{
    *out << bad.name;
}

class BadAppends : public ::testing::TestWithParam<BadAppend> {};

/// Two new rows each for sequences of 20, 0 and 40 keys, in 4 pages of 16 rows.
TEST_P(BadAppends, AreRefusedWithNothingWritten)
{
    const BadAppend& bad = GetParam();
    const Shape shape{3, 4, 2, 2, 64, 32, 24};
    CacheCase cached(shape, {22, 2, 42}, 16, DType::float32, 21);
    const ForwardArgs at = cached.args(bad.form);
    const std::vector<std::int32_t> before{20, 0, 40};
    const New rows = rows_of(cached.attention, before, 2);
    AppendArgs args{rows.k.view(), rows.v.view(), writable(at.k), writable(at.v)};
    Options options = cached.options(bad.form);
    std::copy(before.begin(), before.end(), cached.seqlens());
    bad.spoil(cached, args, options);
    const HostTensor k_before = HostTensor::copy_of(at.k), v_before = HostTensor::copy_of(at.v);
    expect_refused(bad.says, [&] { append(args, options); });
    EXPECT_TRUE(same_bits(HostTensor::copy_of(at.k), k_before));
    EXPECT_TRUE(same_bits(HostTensor::copy_of(at.v), v_before));
}

INSTANTIATE_TEST_SUITE_P(
    All, BadAppends,
    ::testing::Values(
        BadAppend{"PageBeyond", "block_table is 99 for page 0 of sequence 1", CacheForm::block_table,
                  [](CacheCase& c, AppendArgs&, Options&) { c.table()[4] = 99; }},
        BadAppend{"NoRoom", "k has 2 new rows for sequence 1, which has 63 of the 64 rows of its cache; allowed are 1",
                  CacheForm::contiguous, [](CacheCase& c, AppendArgs&, Options&) { c.seqlens()[1] = 63; }},
        BadAppend{"PageOfTwo", "which both append to it", CacheForm::block_table,
                  [](CacheCase& c, AppendArgs&, Options&) { c.table()[4] = c.table()[1]; }},
        BadAppend{"CacheOfTwo", "which both append to it", CacheForm::batch_index,
                  [](CacheCase& c, AppendArgs&, Options&) { c.batch_index()[1] = c.batch_index()[0]; }},
        BadAppend{"PageThatAnotherReads", "which has keys there", CacheForm::block_table,
                  [](CacheCase& c, AppendArgs&, Options&) { c.table()[4] = c.table()[8]; }},
        BadAppend{"FewerKeysThanNew", "k has 2 new rows for sequence 1", CacheForm::compressed,
                  [](CacheCase& c, AppendArgs&, Options&) { c.last_page_len()[1] = 1; }},
        BadAppend{"NoLengths", "cache_seqlens was not given", CacheForm::block_table,
                  [](CacheCase&, AppendArgs&, Options& o) { o.cache_seqlens = {}; }},
        BadAppend{"OtherHeads", "k has shape [3, 2, 1, 32] but k_cache", CacheForm::contiguous,
                  [](CacheCase&, AppendArgs& a, Options&) { a.k.shape[2] = a.v.shape[2] = 1; }},
        BadAppend{"TooWide", "k has head_dim 577; it must be 1 to 576", CacheForm::contiguous,
                  [](CacheCase&, AppendArgs& a, Options&) { a.k.shape[3] = a.k_cache.shape[3] = 577; }},
        BadAppend{"OtherDtype", "v is bfloat16 but k is float32", CacheForm::contiguous,
                  [](CacheCase&, AppendArgs& a, Options&) { a.v.dtype = DType::bfloat16; }},
        BadAppend{"ValuesWithoutCache", "v and v_cache must be given together", CacheForm::contiguous,
                  [](CacheCase&, AppendArgs& a, Options&) { a.v_cache = {}; }},
        BadAppend{"CacheWithoutValues", "v and v_cache must be given together", CacheForm::block_table,
                  [](CacheCase&, AppendArgs& a, Options&) { a.v = {}; }},
        BadAppend{"FewPositions", "rotary_cos has 41 positions, but sequence 2 needs 42", CacheForm::contiguous,
                  [](CacheCase& c, AppendArgs& a, Options&) {
                      a.rotary.cos = a.rotary.sin =
                          ConstTensorView::contiguous(c.attention.q.data(), DType::float32, {41, 4});
                  }},
        BadAppend{"WideRotary", "rotary_cos has 17 columns; allowed are 1 to 16", CacheForm::contiguous,
                  [](CacheCase& c, AppendArgs& a, Options&) {
                      a.rotary.cos = a.rotary.sin =
                          ConstTensorView::contiguous(c.attention.q.data(), DType::float32, {4, 17});
                  }},
        BadAppend{"CosAlone", "rotary_cos and rotary_sin must be given together", CacheForm::contiguous,
                  [](CacheCase& c, AppendArgs& a, Options&) {
                      a.rotary.cos = ConstTensorView::contiguous(c.attention.q.data(), DType::float32, {64, 4});
                  }},
        BadAppend{"QueriesWithoutRotary", "q was given without a rotary embedding", CacheForm::contiguous,
                  [](CacheCase& c, AppendArgs& a, Options&) {
                      a.q = c.attention.q.view();
                      a.q_out = c.attention.o.view();
                  }},
        BadAppend{"BoundariesOfNoQueries", "cu_seqlens_q was given without q", CacheForm::contiguous,
                  [](CacheCase& c, AppendArgs&, Options& o) {
                      o.cu_seqlens_q = ConstTensorView::contiguous(c.seqlens(), DType::int32, {3});
                  }},
        BadAppend{"CacheIsTheNewRows", "k_cache overlaps k in memory", CacheForm::contiguous,
                  [](CacheCase&, AppendArgs& a, Options&) {
                      a.k.data = a.k_cache.data;
                      a.k.strides = a.k_cache.strides;
                  }},
        BadAppend{"OneCacheForBoth", "v_cache overlaps k_cache", CacheForm::contiguous,
                  [](CacheCase&, AppendArgs& a, Options&) { a.v_cache.data = a.k_cache.data; }},
        BadAppend{"AMask", "key_padding_mask was given to append()", CacheForm::contiguous,
                  [](CacheCase& c, AppendArgs&, Options& o) {
                      c.attention.add_key_padding();
                      o.key_padding_mask = c.attention.options.key_padding_mask;
                  }},
        BadAppend{"ASoftcap", "softcap was given to append()", CacheForm::contiguous,
                  [](CacheCase&, AppendArgs&, Options& o) { o.softcap = -3; }},
        BadAppend{"AScaleOfScores", "scale was given to append()", CacheForm::contiguous,
                  [](CacheCase&, AppendArgs&, Options& o) { o.scale = std::numeric_limits<double>::quiet_NaN(); }},
        BadAppend{"ADropout", "dropout was given to append()", CacheForm::contiguous,
                  [](CacheCase&, AppendArgs&, Options& o) { o.dropout = {.probability = 0.5, .seed = 3}; }},
        BadAppend{"ABlockMask", "block_mask was given to append()", CacheForm::contiguous,
                  [](CacheCase&, AppendArgs&, Options& o) {
                      o.block_mask =
                          BlockMask::from_predicate({.seqlen_q = 2, .seqlen_k = 64}, [](auto...) { return true; });
                  }},
        BadAppend{"PositionsOfKeys", "positions_k was given to append()", CacheForm::contiguous,
                  [](CacheCase&, AppendArgs&, Options& o) { o.positions_k.whole = 64; }},
        BadAppend{"PositionsOfQueries", "positions_q was given to append()", CacheForm::contiguous,
                  [](CacheCase&, AppendArgs&, Options& o) { o.positions_q.whole = 64; }},
        BadAppend{"ANumberOfSequences", "first_sequence was given to append()", CacheForm::contiguous,
                  [](CacheCase&, AppendArgs&, Options& o) { o.first_sequence = 1; }},
        BadAppend{"ANumberOfHeads", "first_head was given to append()", CacheForm::contiguous,
                  [](CacheCase&, AppendArgs&, Options& o) { o.first_head = -1; }},
        BadAppend{"AWindowThatIsNone", "window left was -7", CacheForm::contiguous,
                  [](CacheCase&, AppendArgs&, Options& o) { o.window.left = -7; }},
        BadAppend{"AScaleWithoutEightBits", "k_scale was given to append()", CacheForm::contiguous,
                  [](CacheCase& c, AppendArgs&, Options& o) {
                      o.k_scale = ConstTensorView::contiguous(c.attention.q.data(), DType::float32, {2});
                  }},
        BadAppend{"OneCacheOfEightBits", "v_cache is float32 but k_cache is int8", CacheForm::contiguous,
                  [](CacheCase&, AppendArgs& a, Options&) { a.k_cache.dtype = DType::int8; }},
        BadAppend{"NewRowsOfEightBits", "k is int8; it must be float32, bfloat16 or float16", CacheForm::contiguous,
                  [](CacheCase&, AppendArgs& a, Options&) { a.k.dtype = a.v.dtype = DType::int8; }},
        BadAppend{"AScaleOfZero", "v_scale is 0 for key head 1", CacheForm::contiguous,
                  [](CacheCase& c, AppendArgs& a, Options& o) {
                      a.k_cache.dtype = a.v_cache.dtype = DType::int8;
                      static_cast<float*>(c.attention.q.data())[0] = 1.0F;
                      static_cast<float*>(c.attention.q.data())[1] = 0.0F;
                      o.v_scale = ConstTensorView::contiguous(c.attention.q.data(), DType::float32, {2});
                  }},
        BadAppend{"OnTheReference", "backend was reference", CacheForm::contiguous,
                  [](CacheCase&, AppendArgs&, Options& o) { o.backend = Backend::reference; }}),
    [](const auto& one) { return std::string(one.param.name); });

TEST(AppendTo, APageWhoseFirstRowsAreShared)
{
    // Sequence 1 has the first 4 rows of sequence 0's page, and only sequence 0 appends behind them.
    CacheCase cached({2, 2, 1, 1, 16, 8, 8}, {5, 4}, 16, DType::float32, 22);
    const ForwardArgs at = cached.args(CacheForm::block_table);
    cached.table()[1] = cached.table()[0];
    cached.seqlens()[0] = 4;
    const AttentionCase starts({0, 2, 1, 0, 0, 8, 8}, Lengths{{1, 0}, {1, 0}}, DType::float32, 1);
    HostTensor k(DType::float32, {1, 1, 8}), v(DType::float32, {1, 1, 8});
    Options options = cached.options(CacheForm::block_table);
    options.cu_seqlens_k = starts.cu_seqlens_k.view();
    append({std::as_const(k).view(), std::as_const(v).view(), writable(at.k), writable(at.v)}, options);
}

} // namespace
} // namespace flashomp::testing
