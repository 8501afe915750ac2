// Key/value caches through the C interface: the bits of the C++ calls, with a cache of q's dtype and one of 8 bits.
#include "c_call.hpp"

#include "support/cache_case.hpp"

#include "flashomp/cache.hpp"

#include <string>
#include <vector>

namespace flashomp::testing {
namespace {

/// A cache to write, and a copy of it for the other language.
struct Caches {
    HostTensor k, v;
};

Caches copied(const ForwardArgs& args)
{
    return {HostTensor::copy_of(args.k), HostTensor::copy_of(args.v)};
}

flashomp_append_args append_args(CCall& call, const AppendArgs& args)
{
    flashomp_append_args c_args;
    flashomp_append_args_init(&c_args, sizeof c_args);
    c_args.k = call.tensor(args.k);
    c_args.v = call.tensor(args.v);
    c_args.k_cache = call.tensor(args.k_cache);
    c_args.v_cache = call.tensor(args.v_cache);
    c_args.rotary_cos = call.tensor(args.rotary.cos);
    c_args.rotary_sin = call.tensor(args.rotary.sin);
    c_args.q = call.tensor(args.q);
    c_args.q_out = call.tensor(args.q_out);
    c_args.rotary_halves = args.rotary.interleaved ? 0 : 1;
    return c_args;
}

class CApiCache : public ::testing::TestWithParam<DType> {};

INSTANTIATE_TEST_SUITE_P(Types, CApiCache, ::testing::Values(DType::float32, DType::float8_e4m3, DType::int8),
                         [](const auto& one) { return std::string(name_of(one.param)); });

TEST_P(CApiCache, HasTheBitsOfCpp)
{
    // Two new rows behind 20 and 3 keys, then attention to all of them.
    CacheCase cached({2, 4, 2, 2, 48, 16, 16}, {22, 5}, 16, DType::float32, 51);
    const HostTensor rows_k = random_tensor(cached.attention.random(), DType::float32, {2, 2, 2, 16});
    const HostTensor rows_v = random_tensor(cached.attention.random(), DType::float32, {2, 2, 2, 16});
    const HostTensor cos = random_tensor(cached.attention.random(), DType::float32, {48, 4});
    const HostTensor sin = random_tensor(cached.attention.random(), DType::float32, {48, 4});
    if (GetParam() != DType::float32) {
        cached.quantise(GetParam(), ScaledBy::pages);
    }
    Options options = cached.options(CacheForm::block_table);
    options.device.kind = Device::Kind::host;
    options.backend = Backend::openmp;
    options.causal = Causal::bottom_right;
    const ForwardArgs at = cached.args(CacheForm::block_table);
    Caches of_cpp = copied(at), of_c = copied(at);
    HostTensor q(DType::float32, cached.attention.q.shape(), io::Fill::poison);
    HostTensor c_q(DType::float32, cached.attention.q.shape(), io::Fill::poison);
    const auto args_of = [&](Caches& caches, HostTensor& turned) {
        AppendArgs args{rows_k.view(), rows_v.view(), caches.k.view(), caches.v.view()};
        args.rotary = {cos.view(), sin.view(), false};
        args.q = std::as_const(cached.attention.q).view();
        args.q_out = turned.view();
        return args;
    };
    const std::vector<std::int32_t> after = cached.lengths();
    cached.seqlens()[0] -= 2;
    cached.seqlens()[1] -= 2;
    append(args_of(of_cpp, q), options);
    {
        CCall call(options);
        const flashomp_append_args args = append_args(call, args_of(of_c, c_q));
        flashomp_report report;
        flashomp_report_init(&report, sizeof report);
        ASSERT_EQ(flashomp_append(&args, &call.options, &report), FLASHOMP_OK) << flashomp_last_error();
        EXPECT_EQ(std::string(report.machine), "plain");
    }
    EXPECT_TRUE(same_bits(of_cpp.k, of_c.k));
    EXPECT_TRUE(same_bits(of_cpp.v, of_c.v));
    EXPECT_TRUE(same_bits(q, c_q));
    EXPECT_FALSE(same_bits(of_cpp.k, HostTensor::copy_of(at.k)));

    std::copy(after.begin(), after.end(), cached.seqlens());
    ForwardArgs args = at;
    args.k = std::as_const(of_cpp.k).view();
    args.v = std::as_const(of_cpp.v).view();
    forward(args, options);
    HostTensor o(DType::float32, cached.attention.o.shape(), io::Fill::poison);
    HostTensor lse(DType::float32, cached.attention.lse.shape(), io::Fill::poison);
    args.o = o.view();
    args.lse = lse.view();
    CCall call(args, options);
    ASSERT_EQ(flashomp_forward(&call.forward, &call.options, nullptr), FLASHOMP_OK) << flashomp_last_error();
    EXPECT_TRUE(same_bits(o, cached.attention.o));
    EXPECT_TRUE(same_bits(lse, cached.attention.lse));
}

TEST(CApiCacheOfEightBits, IsRefusedInTheWordsOfCpp)
{
    CacheCase cached({2, 4, 2, 2, 48, 16, 16}, {22, 5}, 16, DType::float32, 52);
    cached.quantise(DType::int8, ScaledBy::heads);
    Options options = cached.options(CacheForm::block_table);
    options.v_scale.shape[0] = 1;
    CCall call(cached.args(CacheForm::block_table), options);
    EXPECT_EQ(flashomp_forward(&call.forward, &call.options, nullptr), FLASHOMP_BAD_ARGUMENT);
    EXPECT_NE(std::string(flashomp_last_error()).find("v_scale is float32 [1]; it must be float32 [2]"),
              std::string::npos)
        << flashomp_last_error();
}

} // namespace
} // namespace flashomp::testing
