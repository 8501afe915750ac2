// Strided views, head-major layouts and slices of packed tensors give what contiguous tensors give, and elements
// between the strides stay untouched.
#include "support/attention_case.hpp"
#include "support/target.hpp"

namespace flashomp::testing {
namespace {

class Layout : public EveryTargetTest {};

INSTANTIATE_TEST_SUITE_P(Machines, Layout, ::testing::ValuesIn(targets()), target_name);

constexpr std::int64_t B = 2, N = 70, H = 3, D = 24;

/// One [B, N, 3, H, D] tensor and its three [B, N, H, D] slices.
struct Packed {
    HostTensor memory;

    explicit Packed(Fill fill) : memory(DType::float32, {B * N * 3 * H * D}, fill) {}

    [[nodiscard]] TensorView slice(std::int64_t which)
    {
        return {static_cast<float*>(memory.data()) + which * H * D,
                DType::float32,
                {B, N, H, D},
                {N * 3 * H * D, 3 * H * D, D, 1}};
    }
};

/// A tensor's elements with a few others, which are not its own, after each row of its last axis.
class Spaced {
public:
    explicit Spaced(const HostTensor& source)
    {
        io::Shape wide = source.shape();
        const std::int64_t width = wide.back();
        wide.back() += 3;
        memory_ = HostTensor(source.dtype(), wide, Fill::poison);
        const auto bytes = static_cast<std::size_t>(width * size_of(source.dtype()));
        const auto wide_bytes = static_cast<std::size_t>(wide.back() * size_of(source.dtype()));
        for (std::size_t row = 0; row < static_cast<std::size_t>(source.elements() / width); ++row) {
            std::memcpy(static_cast<std::byte*>(memory_.data()) + row * wide_bytes,
                        static_cast<const std::byte*>(source.data()) + row * bytes, bytes);
        }
    }

    [[nodiscard]] ConstTensorView view() const
    {
        ConstTensorView view = memory_.view();
        view.shape.at(static_cast<std::size_t>(view.rank - 1)) -= 3;
        return view;
    }

private:
    HostTensor memory_;
};

void copy_into(const TensorView& target, const HostTensor& source)
{
    const auto* from = static_cast<const float*>(source.data());
    for (std::int64_t b = 0; b < B; ++b) {
        for (std::int64_t n = 0; n < N; ++n) {
            for (std::int64_t x = 0; x < H * D; ++x) {
                static_cast<float*>(target.data)[b * target.strides[0] + n * target.strides[1] + x] = *from++;
            }
        }
    }
}

TEST_P(Layout, SlicesOfOnePackedTensor)
{
    AttentionCase attention({B, H, H, N, N, D, D}, DType::float32, 41);
    static_cast<void>(attention.run(on_target({})));

    Packed qkv(Fill::zero);
    Packed gradients(Fill::poison);
    copy_into(qkv.slice(0), attention.q);
    copy_into(qkv.slice(1), attention.k);
    copy_into(qkv.slice(2), attention.v);
    HostTensor o(DType::float32, {B, N, H, D}, Fill::poison);
    HostTensor lse(DType::float32, {B, H, N}, Fill::poison);
    forward({qkv.slice(0), qkv.slice(1), qkv.slice(2), o.view(), lse.view()}, on_target({}));
    backward({qkv.slice(0),
              qkv.slice(1),
              qkv.slice(2),
              o.view(),
              lse.view(),
              attention.dout.view(),
              gradients.slice(0),
              gradients.slice(1),
              gradients.slice(2),
              {},
              {}},
             on_target({}));
    EXPECT_TRUE(same_bits(o, attention.o));
    EXPECT_TRUE(same_bits(HostTensor::copy_of(gradients.slice(0)), attention.dq));
    EXPECT_TRUE(same_bits(HostTensor::copy_of(gradients.slice(1)), attention.dk));
    EXPECT_TRUE(same_bits(HostTensor::copy_of(gradients.slice(2)), attention.dv));
}

/// Multi-head latent attention: v is the first columns of k. Inputs may share memory, and to read it twice changes no
/// bit; keys that nobody sees may hold anything.
TEST_P(Layout, ValuesAreColumnsOfTheKeys)
{
    struct Case {
        Shape shape;
        Causal causal;
    };
    for (const DType dtype : {DType::float32, DType::bfloat16, DType::float16}) {
        for (const Case& c : {Case{{1, 32, 1, 1, 100, 576, 512}, Causal::none},            // decoding
                              Case{{1, 4, 1, 70, 90, 576, 512}, Causal::bottom_right},     // prefill
                              Case{{1, 4, 1, 20, 90, 576, 512}, Causal::top_left},         // keys from 20 on are hidden
                              Case{{1, 2, 1, 3, 2100, 192, 128}, Causal::bottom_right}}) { // parts of the keys
            SCOPED_TRACE(::testing::Message() << c.shape << " " << name_of(dtype));
            AttentionCase attention(c.shape, dtype, 45);
            attention.options.causal = c.causal;
            const auto columns = [&](const HostTensor& latent) {
                ConstTensorView view = latent.view();
                view.shape[3] = c.shape.head_dim_v;
                return view;
            };
            attention.v = HostTensor::copy_of(columns(std::as_const(attention.k)));
            const Options options = on_target(attention.options);
            static_cast<void>(attention.run(options));
            const Results expected = attention.take_results();
            HostTensor latent = HostTensor::copy_of(std::as_const(attention.k).view());
            if (c.causal == Causal::top_left) {
                const std::int64_t seen = c.shape.seqlen_q * c.shape.head_dim * size_of(dtype);
                std::memset(static_cast<std::byte*>(latent.data()) + seen, 0xFF,
                            static_cast<std::size_t>(latent.bytes() - seen)); // NaN
            }
            attention.poison_outputs();
            ForwardArgs args = attention.forward_args();
            args.k = std::as_const(latent).view();
            args.v = columns(latent);
            forward(args, options);
            BackwardArgs backward_args = attention.backward_args();
            backward_args.k = args.k;
            backward_args.v = args.v;
            backward(backward_args, options);
            if (c.causal != Causal::top_left) { // what is computed twice may differ in its last bits
                expect_same_bits(expected, attention.take_results());
            } else {
                attention.expect_close();
            }
        }
    }
}

TEST_P(Layout, OutputsMayNotLieInTheLatentTensor)
{
    AttentionCase attention({1, 2, 1, 40, 40, 48, 32}, DType::float32, 46);
    attention.poison_outputs();
    ForwardArgs args = attention.forward_args();
    args.v = args.k;
    args.v.shape[3] = 32;
    args.o.data = const_cast<void*>(args.k.data);
    try {
        forward(args, on_target({}));
        ADD_FAILURE() << "o in k's memory was taken";
    } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find("o overlaps k in memory"), std::string::npos) << error.what();
    }
}

TEST_P(Layout, HeadMajorTensors)
{
    AttentionCase attention({B, H, H, N, N, D, D}, DType::float32, 42);
    static_cast<void>(attention.run(on_target({})));

    const auto head_major = [](const HostTensor& tensor) {
        return HostTensor::copy_of(tensor.view().transposed(1, 2)); // now [B, H, N, D] in memory
    };
    const HostTensor q = head_major(attention.q);
    const HostTensor k = head_major(attention.k);
    const HostTensor v = head_major(attention.v);
    HostTensor o(DType::float32, {B, H, N, D}, Fill::poison);
    HostTensor lse(DType::float32, {B, H, N}, Fill::poison);
    forward({q.view().transposed(1, 2), k.view().transposed(1, 2), v.view().transposed(1, 2), o.view().transposed(1, 2),
             lse.view()},
            on_target({}));
    EXPECT_TRUE(same_bits(HostTensor::copy_of(o.view().transposed(1, 2)), attention.o));
    EXPECT_TRUE(same_bits(lse, attention.lse));
}

TEST_P(Layout, GapsBetweenOutputRowsStayUntouched)
{
    AttentionCase attention({B, H, H, N, N, D, D}, DType::float32, 43);
    static_cast<void>(attention.run(on_target({})));
    Packed output(Fill::poison);
    HostTensor lse(DType::float32, {B, H, N}, Fill::poison);
    forward({std::as_const(attention.q).view(), std::as_const(attention.k).view(), std::as_const(attention.v).view(),
             output.slice(1), lse.view()},
            on_target({}));
    EXPECT_TRUE(same_bits(HostTensor::copy_of(output.slice(1)), attention.o));
    const HostTensor untouched(DType::float32, {B, N, H, D}, Fill::poison);
    EXPECT_TRUE(same_bits(HostTensor::copy_of(output.slice(0)), untouched));
    EXPECT_TRUE(same_bits(HostTensor::copy_of(output.slice(2)), untouched));
}

TEST_P(Layout, OptionsInSlicesOfLargerTensors)
{
    AttentionCase attention({B, H, H, N, N, D, D}, DType::float32, 44);
    attention.add_alibi(true);
    attention.add_bias();
    attention.add_key_padding();
    static_cast<void>(attention.run(on_target(attention.options)));
    const Results expected = attention.take_results();
    const Spaced slopes(attention.alibi_slopes), bias(attention.bias), mask(attention.key_padding_mask);
    attention.options.alibi_slopes = slopes.view();
    attention.options.bias = bias.view();
    attention.options.key_padding_mask = mask.view();
    static_cast<void>(attention.run(on_target(attention.options)));
    expect_same_bits(expected, attention.take_results());
}

} // namespace
} // namespace flashomp::testing
