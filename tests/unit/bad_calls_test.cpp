// Bad arguments of backward(), merge() and dropout_mask(): one sentence that names the argument, and outputs left as
// they were.
#include "refusal.hpp"

#include <cmath>

namespace flashomp::testing {
namespace {

constexpr DType f32 = DType::float32;

struct BadGradient {
    const char* name;
    const char* says;
    std::function<void(AttentionCase&, BackwardArgs&)> spoil;
};

void PrintTo(const BadGradient& bad, std::ostream* out)
{
    *out << bad.name;
}

// The problem has a bias [1, 4, 20, 30] and a sink.
std::vector<BadGradient> bad_gradients()
{
    return {
        {"DbiasWithoutBias", "dbias was given without a bias", [](auto& c, auto&) { c.options.bias = {}; }},
        {"DsinkWithoutSink", "dsink was given without a sink", [](auto& c, auto&) { c.options.sink = {}; }},
        {"DbiasNotReduced", "dbias is float32 [2, 4, 20, 30]", [](auto&, auto& a) { a.dbias.shape[0] = 2; }},
        {"DbiasInSixteenBits", "dbias is bfloat16", [](auto&, auto& a) { a.dbias.dtype = DType::bfloat16; }},
        {"DsinkOfKeyHeads", "dsink is float32 [2]", [](auto&, auto& a) { a.dsink.shape[0] = 2; }},
        {"DsinkInDoubles", "dsink is float64", [](auto&, auto& a) { a.dsink.dtype = DType::float64; }},
        {"NoDout", "dout was not given", [](auto&, auto& a) { a.dout = {}; }},
        {"NoLse", "lse was not given", [](auto&, auto& a) { a.lse = {}; }},
        {"NoO", "o was not given", [](auto&, auto& a) { a.o = {}; }},
        {"NoDq", "dq was not given", [](auto&, auto& a) { a.dq = {}; }},
        {"DkShape", "dk is float32", [](auto&, auto& a) { a.dk.shape[2] = 4; }},
        {"DkIsDv", "dv overlaps dk", [](auto&, auto& a) { a.dv.data = a.dk.data; }},
        {"DqIsQ", "dq overlaps q", [](AttentionCase& c, auto& a) { a.dq.data = c.q.data(); }},
        {"DqIsDout", "dq overlaps dout", [](AttentionCase& c, auto& a) { a.dq.data = c.dout.data(); }},
        {"DbiasIsBias", "dbias overlaps bias", [](AttentionCase& c, auto& a) { a.dbias.data = c.bias.data(); }},
        {"DsinkIsSink", "dsink overlaps sink", [](AttentionCase& c, auto& a) { a.dsink.data = c.sink.data(); }},
        {"DbiasInsideDq", "dbias overlaps dq", [](auto&, auto& a) { a.dbias.data = a.dq.data; }},
        {"DbiasOverlapsItself", "dbias has strides", [](auto&, auto& a) { a.dbias.strides[1] = 0; }},
    };
}

class BadGradients : public ::testing::TestWithParam<BadGradient> {};

INSTANTIATE_TEST_SUITE_P(All, BadGradients, ::testing::ValuesIn(bad_gradients()),
                         [](const auto& param) { return std::string(param.param.name); });

TEST_P(BadGradients, OneSentenceAndNothingWritten)
{
    AttentionCase attention({2, 4, 2, 20, 30, 16, 16}, f32, 63);
    attention.add_bias({true, false, false, false});
    attention.add_sink();
    attention.poison_outputs();
    BackwardArgs args = attention.backward_args();
    GetParam().spoil(attention, args);
    expect_refused(GetParam().says, [&] { backward(args, attention.options); });
    for (const HostTensor* output : {&attention.dq, &attention.dk, &attention.dv, &attention.dbias, &attention.dsink}) {
        EXPECT_TRUE(is_poison(*output));
    }
}

TEST(BadMerge, OneSentenceAndNothingWritten)
{
    std::mt19937_64 random(64);
    const HostTensor o_a = random_tensor(random, f32, {2, 5, 3, 8});
    const HostTensor o_b = random_tensor(random, f32, {2, 5, 3, 8});
    const HostTensor lse_a = random_tensor(random, f32, {2, 3, 5});
    const HostTensor lse_b = random_tensor(random, f32, {2, 3, 5});
    HostTensor o(f32, {2, 5, 3, 8}, Fill::poison);
    HostTensor lse(f32, {2, 3, 5}, Fill::poison);
    struct Call {
        Partial a, b;
        TensorView o, lse;
        Options options;
    };
    const std::vector<std::pair<std::string, std::function<void(Call&)>>> spoils{
        {"a.o has 0 axes", [](Call& c) { c.a.o = {}; }},
        {"b.o is int32", [](Call& c) { c.b.o.dtype = DType::int32; }},
        {"b.o is float32 [2, 5, 3, 7]", [](Call& c) { c.b.o.shape[3] = 7; }},
        {"a.lse was not given", [](Call& c) { c.a.lse = {}; }},
        {"b.lse is float32 [2, 5, 3]", [](Call& c) { std::swap(c.b.lse.shape[1], c.b.lse.shape[2]); }},
        {"lse is bfloat16", [](Call& c) { c.lse.dtype = DType::bfloat16; }},
        {"o has 2 axes", [](Call& c) { c.o.rank = 2; }},
        {"a.o is float32 [2, 5, 3, 8]", [](Call& c) { c.o.shape[1] = 4; }},
        {"data is null", [](Call& c) { c.a.o.data = nullptr; }},
        {"o has strides", [](Call& c) { c.o.strides[0] = 0; }},
        {"overlaps a.o", [](Call& c) { c.o.data = const_cast<char*>(static_cast<const char*>(c.a.o.data) + 4); }},
        {"overlaps b.lse", [](Call& c) { c.lse.data = const_cast<char*>(static_cast<const char*>(c.b.lse.data) + 4); }},
        {"overlaps", [](Call& c) { c.lse.data = c.o.data; }},
        {"overlaps", [](Call& c) { c.lse.data = const_cast<void*>(c.a.o.data); }},
        {"threads was -1", [](Call& c) { c.options.threads = -1; }},
        {"backend was reference", [](Call& c) { c.options.backend = Backend::reference; }},
        {"device was 97",
         [](Call& c) {
             c.options.device = {Device::Kind::gpu, 97};
         }},
    };
    for (const auto& [says, spoil] : spoils) {
        Call call{{o_a.view(), lse_a.view()}, {o_b.view(), lse_b.view()}, o.view(), lse.view(), {}};
        spoil(call);
        expect_refused(says, [&, &given = call] { merge(given.a, given.b, given.o, given.lse, given.options); });
        EXPECT_TRUE(is_poison(o) && is_poison(lse)) << says;
    }
}

TEST(BadDropoutMask, OneSentenceAndNothingWritten)
{
    HostTensor mask(DType::boolean, {2, 3, 4, 5}, Fill::poison);
    const auto refused = [&](const std::string& says, const Dropout& dropout, const TensorView& view) {
        expect_refused(says, [&] { dropout_mask(dropout, view); });
        EXPECT_TRUE(is_poison(mask)) << says;
    };
    refused("dropout was 1", {1.0, 0, 0}, mask.view());
    refused("dropout was -0.5", {-0.5, 0, 0}, mask.view());
    refused("dropout was nan", {std::nan(""), 0, 0}, mask.view());
    refused("mask", {0.5, 0, 0}, {});
    TensorView view = mask.view();
    view.dtype = DType::float32;
    refused("mask is float32", {0.5, 0, 0}, view);
    view = mask.view();
    view.rank = 3;
    refused("mask is boolean [2, 3, 4]", {0.5, 0, 0}, view);
    view = mask.view();
    view.memory = Memory::device;
    refused("host memory", {0.5, 0, 0}, view);
    view = mask.view();
    view.data = nullptr;
    refused("data is null", {0.5, 0, 0}, view);
    view = mask.view();
    view.strides[1] = 0;
    refused("overlap", {0.5, 0, 0}, view);
}

} // namespace
} // namespace flashomp::testing
