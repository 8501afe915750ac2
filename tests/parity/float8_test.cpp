// The forward pass on float8_e4m3: the CUDA backend's Hopper kernel against the reference, by the rule of all dtypes.
#include "support/attention_case.hpp"
#include "support/target.hpp"

#include "quantized.hpp"

namespace flashomp::testing {
namespace {

class Float8 : public CudaTest {
protected:
    /// Heads of different sizes, each with its scale; what options already has is kept.
    void check(const Shape& shape, Options options, std::uint64_t seed)
    {
        SCOPED_TRACE(shape);
        std::mt19937_64 random(seed);
        const auto input = [&](std::int64_t rows, std::int64_t heads, std::int64_t depth) {
            HostTensor tensor = random_tensor(random, DType::float32, {shape.batch, rows, heads, depth});
            auto* const values = static_cast<float*>(tensor.data());
            for (std::int64_t i = 0; i < tensor.elements(); ++i) {
                values[i] *= 0.5F + 0.5F * static_cast<float>(i / depth % heads);
            }
            return io::quantized(tensor, 2);
        };
        io::Quantized q = input(shape.seqlen_q, shape.heads_q, shape.head_dim);
        io::Quantized k = input(shape.seqlen_k, shape.heads_kv, shape.head_dim);
        io::Quantized v = input(shape.seqlen_k, shape.heads_kv, shape.head_dim_v);
        HostTensor o(DType::bfloat16, {shape.batch, shape.seqlen_q, shape.heads_q, shape.head_dim_v}, Fill::poison);
        HostTensor lse(DType::float32, {shape.batch, shape.heads_q, shape.seqlen_q}, Fill::poison);
        options.q_scale = q.scale.view();
        options.k_scale = k.scale.view();
        // The first sequence's scale for all: [Hkv] instead of [B, Hkv].
        options.v_scale = ConstTensorView::contiguous(v.scale.data(), DType::float32, {shape.heads_kv});
        const ForwardArgs args{q.elements.view(), k.elements.view(), v.elements.view(), o.view(), lse.view()};
        const Report report = forward(args, on_target(options));
        EXPECT_EQ(report.machine, "hopper");
        EXPECT_TRUE(report.on_device);

        Problem problem = validate_forward(args, options);
        problem.options.threads = 1;
        const auto exact = reference::forward(problem);
        const auto naive = reference::forward(problem, reference::Rounding::float8_e4m3);
        expect_passed({compared("o", doubles(o), exact.o, naive.o, reference::output_factor),
                       compared("lse", doubles(lse), exact.lse, naive.lse, reference::output_factor)});

        const HostTensor first = HostTensor::copy_of(o.view());
        forward(args, on_target(options));
        EXPECT_TRUE(same_bits(first, o));
    }
};

TEST_F(Float8, EveryDepthAndLength)
{
    std::uint64_t seed = 700;
    for (const std::int64_t head_dim : {16, 48, 64, 80, 128}) {
        for (const std::int64_t length : {1, 63, 129, 512, 1000}) {
            check({2, 4, 2, length, length, head_dim, head_dim}, {}, ++seed);
        }
    }
    check({1, 3, 1, 77, 300, 64, 128}, {}, ++seed);
    check({1, 3, 3, 300, 77, 128, 32}, {}, ++seed);
    check({3, 40, 8, 200, 2000, 128, 128}, {}, ++seed); // more items than a GPU has multiprocessors
}

TEST_F(Float8, EveryMaskAndSink)
{
    for (const Causal causal : {Causal::none, Causal::top_left, Causal::bottom_right}) {
        for (const Window window : {Window{}, Window{40, 0}, Window{200, 100}}) {
            for (const bool has_more : {false, true}) {
                const Shape shape{2, 6, 2, 333, 450, 128, 128};
                HostTensor padding(DType::boolean, {shape.batch, shape.seqlen_k});
                HostTensor sink(DType::float32, {shape.heads_q});
                std::mt19937_64 random(801);
                for (std::int64_t i = 0; i < padding.elements(); ++i) {
                    static_cast<std::uint8_t*>(padding.data())[i] = random() % 4 != 0 ? 1 : 0;
                }
                for (std::int64_t i = 0; i < sink.elements(); ++i) {
                    static_cast<float*>(sink.data())[i] = static_cast<float>(i) - 2.0F;
                }
                Options options;
                options.causal = causal;
                options.window = window;
                options.key_padding_mask = has_more ? padding.view() : ConstTensorView{};
                options.sink = has_more ? sink.view() : ConstTensorView{};
                check(shape, options, 802);
            }
        }
    }
}

TEST_F(Float8, WhatTheKernelDoesNotDoIsSaid)
{
    std::mt19937_64 random(900);
    HostTensor q = random_tensor(random, DType::float8_e4m3, {1, 30, 2, 64});
    HostTensor o(DType::bfloat16, {1, 30, 2, 64}, Fill::poison);
    HostTensor lse(DType::float32, {1, 2, 30}, Fill::poison);
    Options options = on_target({});
    options.softcap = 20.0;
    try {
        forward({q.view(), q.view(), q.view(), o.view(), lse.view()}, options);
        FAIL() << "softcap was taken";
    } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find("q is float8_e4m3, which is allowed on"), std::string::npos);
    }
}

} // namespace
} // namespace flashomp::testing
