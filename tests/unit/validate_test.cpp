// Every bad argument of the C++ API: one sentence that names it, and outputs left as they were.
#include "refusal.hpp"

#include "support/target.hpp"

#include <cmath>

namespace flashomp::testing {
namespace {

struct BadCall {
    const char* name;
    const char* says; ///< part of the sentence
    std::function<void(AttentionCase&, ForwardArgs&, Options&)> spoil;
};

void PrintTo(const BadCall& bad, std::ostream* out)
{
    *out << bad.name;
}

class Validate : public ::testing::TestWithParam<BadCall> {};

std::vector<BadCall> bad_calls()
{
    return {
        {"NoQ", "q was not given", [](auto&, ForwardArgs& a, auto&) { a.q = {}; }},
        {"RankOfK", "k has 3 axes", [](auto&, ForwardArgs& a, auto&) { a.k.rank = 3; }},
        {"DtypeOfV", "v is bfloat16 but q is float32",
         [](auto&, ForwardArgs& a, auto&) { a.v.dtype = DType::bfloat16; }},
        {"DtypeOfQ", "q is int32", [](auto&, ForwardArgs& a, auto&) { a.q.dtype = DType::int32; }},
        {"HeadDimTooLarge", "q has head_dim 577; it must be 1 to 576.",
         [](auto&, ForwardArgs& a, auto&) { a.q.shape[3] = 577; }},
        {"HeadDimOfVTooLarge", "v has head_dim 513; it must be 1 to 512.",
         [](auto&, ForwardArgs& a, auto&) { a.v.shape[3] = 513; }},
        {"HeadDimsDiffer", "k has head_dim 9 but q has 16", [](auto&, ForwardArgs& a, auto&) { a.k.shape[3] = 9; }},
        {"HeadsNotDivisible", "divisible by heads_kv", [](auto&, ForwardArgs& a, auto&) { a.k.shape[2] = 3; }},
        {"ValueLength", "v has shape", [](auto&, ForwardArgs& a, auto&) { a.v.shape[1] = 9; }},
        {"BatchesDiffer", "batch", [](auto&, ForwardArgs& a, auto&) { a.k.shape[0] = a.v.shape[0] = 3; }},
        {"OutputShape", "o is float32 [1, 20, 4, 15]", [](auto&, ForwardArgs& a, auto&) { a.o.shape[3] = 15; }},
        {"LseDtype", "lse is bfloat16", [](auto&, ForwardArgs& a, auto&) { a.lse.dtype = DType::bfloat16; }},
        {"LastStride", "q has stride 2 on its last axis", [](auto&, ForwardArgs& a, auto&) { a.q.strides[3] = 2; }},
        {"NegativeStride", "0 or more", [](auto&, ForwardArgs& a, auto&) { a.v.strides[1] = -64; }},
        {"NullData", "its data is null", [](auto&, ForwardArgs& a, auto&) { a.k.data = nullptr; }},
        {"OutputIsInput", "o overlaps q", [](AttentionCase& c, ForwardArgs& a, auto&) { a.o.data = c.q.data(); }},
        {"OutputOverlapsItself", "must not overlap itself", [](auto&, ForwardArgs& a, auto&) { a.o.strides[1] = 0; }},
        {"NanScale", "scale was nan", [](auto&, auto&, Options& o) { o.scale = std::nan(""); }},
        {"InfiniteScale", "scale was inf", [](auto&, auto&, Options& o) { o.scale = HUGE_VAL; }},
        {"WindowLeft", "window left was -2", [](auto&, auto&, Options& o) { o.window.left = -2; }},
        {"WindowRight", "window right was -7", [](auto&, auto&, Options& o) { o.window.right = -7; }},
        {"Threads", "threads was -1", [](auto&, auto&, Options& o) { o.threads = -1; }},
        {"CudaBackendOnHost", has_cuda() ? "device was host, but the cuda backend runs on GPUs" : "not in this build",
         [](auto&, auto&, Options& o) {
             o.backend = Backend::cuda;
             o.device.kind = Device::Kind::host;
         }},
        {"StreamOnHost", "stream was given, but the call runs on the host (asked for); allowed is a stream with a GPU",
         [](auto&, auto&, Options& o) {
             o.stream = nullptr;
             o.device.kind = Device::Kind::host;
         }},
        {"StreamOfReference", "stream was given, but the reference backend runs on the host",
         [](auto&, auto&, Options& o) {
             o.stream = nullptr;
             o.backend = Backend::reference;
         }},
        {"DeviceThatIsNotThere", "device was 97",
         [](auto&, auto&, Options& o) {
             o.device = {Device::Kind::gpu, 97};
         }},
        {"ReferenceOnGpu", "reference backend runs on the host",
         [](auto&, auto&, Options& o) {
             o.backend = Backend::reference;
             o.device = {Device::Kind::gpu, 0};
         }},
        {"DeviceMemoryOnHost", "q is in device memory",
         [](auto&, ForwardArgs& a, Options& o) {
             a.q.memory = Memory::device;
             o.device.kind = Device::Kind::host;
         }},
        {"TilingMultiple", "tiling was 7",
         [](auto&, auto&, Options& o) {
             o.tiling.resident_rows = 7;
             o.device.kind = Device::Kind::host;
         }},
    };
}

INSTANTIATE_TEST_SUITE_P(BadCalls, Validate, ::testing::ValuesIn(bad_calls()),
                         [](const auto& param) { return std::string(param.param.name); });

TEST_P(Validate, OneSentenceAndNothingWritten)
{
    AttentionCase attention({1, 4, 2, 20, 30, 16, 16}, DType::float32, 61);
    attention.poison_outputs();
    ForwardArgs args = attention.forward_args();
    Options options;
    GetParam().spoil(attention, args, options);
    expect_refused(GetParam().says, [&] { forward(args, options); });
    EXPECT_TRUE(is_poison(attention.o));
    EXPECT_TRUE(is_poison(attention.lse));
}

TEST(ResultsOf16Bits, MayBeFloat32AndNothingElse)
{
    AttentionCase attention({1, 2, 1, 3, 4, 8, 8}, DType::bfloat16, 62);
    attention.poison_outputs();
    const auto refused = [&](const char* says, TensorView BackwardArgs::*result, const HostTensor& like, DType dtype) {
        HostTensor other(dtype, like.shape(), Fill::poison);
        BackwardArgs args = attention.backward_args();
        args.*result = other.view();
        expect_refused(says, [&] { backward(args, {}); });
        EXPECT_TRUE(is_poison(other));
    };
    refused("dq is float16 [1, 3, 2, 8]; it must be bfloat16 [1, 3, 2, 8], like q, or float32", &BackwardArgs::dq,
            attention.dq, DType::float16);
    refused("dk is float64", &BackwardArgs::dk, attention.dk, DType::float64);
    refused("dv is int32", &BackwardArgs::dv, attention.dv, DType::int32);
    HostTensor o(DType::float16, attention.o.shape(), Fill::poison);
    ForwardArgs args = attention.forward_args();
    args.o = o.view();
    expect_refused("o is float16", [&] { forward(args, {}); });
    HostTensor dout(DType::float32, attention.dout.shape());
    BackwardArgs back = attention.backward_args();
    back.dout = std::as_const(dout).view();
    expect_refused("dout is float32", [&] { backward(back, {}); });
}

} // namespace
} // namespace flashomp::testing
