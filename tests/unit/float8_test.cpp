// float8_e4m3: the conversion against the definition of the format, tensors with a scale for each head, and what the
// reference makes of them; calls that no kernel does.
#include "refusal.hpp"

#include "float8.hpp"
#include "quantized.hpp"

#include <cmath>
#include <limits>

namespace flashomp::testing {
namespace {

using io::HostTensor;

constexpr std::uint8_t sign = 0x80, nan_bits = 0x7F, largest = 0x7E;

/// By the definition of the format, NaN aside.
double value_of(std::uint8_t bits)
{
    const int exponent = (bits & 0x7F) >> 3;
    const int fraction = bits & 7;
    const double magnitude = exponent == 0 ? std::ldexp(fraction, -9) : std::ldexp(8 + fraction, exponent - 10);
    return (bits & sign) != 0 ? -magnitude : magnitude;
}

TEST(Float8, WidensEveryValueAndRoundsItBack)
{
    for (int i = 0; i < 256; ++i) {
        const auto bits = static_cast<std::uint8_t>(i);
        const float value = float_from_float8_e4m3(bits);
        if ((bits & ~sign) == nan_bits) {
            EXPECT_TRUE(std::isnan(value));
            EXPECT_EQ(float8_e4m3_from(static_cast<double>(value)) & ~sign, nan_bits);
            continue;
        }
        EXPECT_EQ(static_cast<double>(value), value_of(bits)) << i;
        EXPECT_EQ(std::signbit(value), (bits & sign) != 0) << i;
        EXPECT_EQ(float8_e4m3_from(static_cast<double>(value)), bits) << i;
    }
    EXPECT_EQ(value_of(largest), most_float8_e4m3);
}

TEST(Float8, RoundsToTheNearestAndTiesToEven)
{
    for (std::uint8_t bits = 0; bits < largest; ++bits) {
        const auto next = static_cast<std::uint8_t>(bits + 1);
        const double middle = (value_of(bits) + value_of(next)) / 2;
        const std::uint8_t even = bits % 2 == 0 ? bits : next;
        EXPECT_EQ(float8_e4m3_from(middle), even) << middle;
        EXPECT_EQ(float8_e4m3_from(std::nextafter(middle, 0.0)), bits) << middle;
        EXPECT_EQ(float8_e4m3_from(std::nextafter(middle, 1e9)), next) << middle;
        EXPECT_EQ(float8_e4m3_from(-middle), even | sign) << middle;
    }
}

TEST(Float8, WhatHasNoNumberIsNoNumber)
{
    EXPECT_EQ(float8_e4m3_from(464.0), largest); // half-way to 480, which is not there
    EXPECT_EQ(float8_e4m3_from(std::nextafter(464.0, 1e9)), nan_bits);
    EXPECT_EQ(float8_e4m3_from(-HUGE_VAL), nan_bits | sign);
    EXPECT_EQ(float8_e4m3_from(1e300), nan_bits);
    EXPECT_EQ(float8_e4m3_from(std::numeric_limits<double>::denorm_min()), 0);
    EXPECT_EQ(float8_e4m3_from(-1e-300), sign);
}

class Quantized : public ::testing::TestWithParam<int> {};

INSTANTIATE_TEST_SUITE_P(HeadsAxis, Quantized, ::testing::Values(1, 2));

TEST_P(Quantized, EachHeadUsesTheWholeRange)
{
    std::mt19937_64 random(7);
    HostTensor tensor = random_tensor(random, DType::float32, {2, 3, 4, 5});
    auto* const values = static_cast<float*>(tensor.data());
    const std::int64_t heads = tensor.shape()[static_cast<std::size_t>(GetParam())];
    const auto head_of = [&](std::int64_t i) { return GetParam() == 1 ? i / 20 % 3 : i / 5 % 4; };
    for (std::int64_t i = 0; i < tensor.elements(); ++i) { // heads of quite different sizes; one is nothing but zeros
        values[i] *= head_of(i) == 0 ? 0.0F : std::pow(10.0F, static_cast<float>(head_of(i)));
    }
    const io::Quantized result = io::quantized(tensor, GetParam());
    ASSERT_EQ(result.elements.dtype(), DType::float8_e4m3);
    ASSERT_EQ(result.elements.shape(), tensor.shape());
    ASSERT_EQ(result.scale.shape(), (io::Shape{2, heads}));
    const auto* const bits = static_cast<const std::uint8_t*>(result.elements.data());
    const auto* const scale = static_cast<const float*>(result.scale.data());
    std::vector<double> most(static_cast<std::size_t>(2 * heads));
    for (std::int64_t i = 0; i < tensor.elements(); ++i) {
        const std::int64_t at = i / 60 * heads + head_of(i);
        const double element = static_cast<double>(float_from_float8_e4m3(bits[i]));
        const double back = element * static_cast<double>(scale[at]);
        const auto value = static_cast<double>(values[i]);
        EXPECT_LE(std::abs(back - value),
                  std::max(std::abs(value) / 16, std::ldexp(static_cast<double>(scale[at]), -10)) * 1.0001)
            << i;
        most[static_cast<std::size_t>(at)] = std::max(most[static_cast<std::size_t>(at)], std::abs(element));
    }
    for (std::size_t at = 0; at < most.size(); ++at) {
        EXPECT_EQ(most[at], at % static_cast<std::size_t>(heads) == 0 ? 0.0 : most_float8_e4m3) << at;
    }
}

/// q, k and v in 8 bits, with scales [B, Hq], [Hkv] and none, and the same as float64.
struct Float8Case {
    std::mt19937_64 random{11};
    HostTensor q = random_tensor(random, DType::float8_e4m3, {2, 9, 4, 16});
    HostTensor k = random_tensor(random, DType::float8_e4m3, {2, 13, 2, 16});
    HostTensor v = random_tensor(random, DType::float8_e4m3, {2, 13, 2, 24});
    HostTensor q_scale{DType::float32, {2, 4}}, k_scale{DType::float32, {2}};
    HostTensor o{DType::bfloat16, {2, 9, 4, 24}, io::Fill::poison}, lse{DType::float32, {2, 4, 9}, io::Fill::poison};
    Options options;

    Float8Case()
    {
        for (int i = 0; i < 8; ++i) {
            static_cast<float*>(q_scale.data())[i] = 0.5F + static_cast<float>(i);
        }
        static_cast<float*>(k_scale.data())[0] = 0.25F;
        static_cast<float*>(k_scale.data())[1] = 1.5F;
        options.q_scale = q_scale.view();
        options.k_scale = k_scale.view();
        options.causal = Causal::bottom_right;
        options.backend = Backend::reference;
    }

    ForwardArgs args() { return {q.view(), k.view(), v.view(), o.view(), lse.view()}; }
};

TEST(Float8Reference, IsThatOfTheScaledElements)
{
    Float8Case c;
    forward(c.args(), c.options);
    HostTensor q = io::converted(c.q, DType::float32);
    HostTensor k = io::converted(c.k, DType::float32);
    const HostTensor v = io::converted(c.v, DType::float32);
    for (std::int64_t i = 0; i < q.elements(); ++i) {
        static_cast<float*>(q.data())[i] *= static_cast<const float*>(c.q_scale.data())[i / 576 * 4 + i / 16 % 4];
    }
    for (std::int64_t i = 0; i < k.elements(); ++i) {
        static_cast<float*>(k.data())[i] *= static_cast<const float*>(c.k_scale.data())[i / 16 % 2];
    }
    HostTensor o(DType::float32, c.o.shape());
    HostTensor lse(DType::float32, c.lse.shape());
    Options options = c.options;
    options.q_scale = options.k_scale = {};
    forward({q.view(), k.view(), v.view(), o.view(), lse.view()}, options);
    EXPECT_TRUE(same_bits(c.lse, lse));
    EXPECT_TRUE(same_bits(c.o, io::converted(o, DType::bfloat16)));
}

TEST(Float8Calls, WhatIsNotAllowedIsSaid)
{
    Float8Case c;
    const auto call = [&](const Options& options) { return [&c, options] { forward(c.args(), options); }; };
    Options host = c.options;
    host.backend = Backend::openmp;
    host.device.kind = Device::Kind::host;
    expect_refused("q is float8_e4m3, which is allowed on backend reference", call(host));
    Options bad = c.options;
    bad.v_scale = c.q_scale.view();
    expect_refused("v_scale is float32 [2, 4]; it must be float32 [2, 2]", call(bad));
    bad = c.options;
    bad.k_scale = c.lse.view();
    expect_refused("k_scale is float32 [2, 4, 9]", call(bad));
    EXPECT_TRUE(is_poison(c.o));
    EXPECT_TRUE(is_poison(c.lse));

    HostTensor wide(DType::float32, c.o.shape());
    expect_refused("o is float32", [&] {
        forward({c.q.view(), c.k.view(), c.v.view(), wide.view(), c.lse.view()}, {});
    });
    HostTensor dq(DType::float8_e4m3, c.q.shape());
    BackwardArgs back;
    back.q = c.q.view();
    back.k = c.k.view();
    back.v = c.v.view();
    expect_refused("q is float8_e4m3, which only the forward pass takes", [&] { backward(back, c.options); });

    AttentionCase attention({1, 4, 2, 5, 6, 16, 16}, DType::float32, 3);
    attention.poison_outputs();
    Options scaled;
    scaled.q_scale = ConstTensorView::contiguous(c.q_scale.data(), DType::float32, {4});
    expect_refused("q_scale was given, but q is float32", [&] { forward(attention.forward_args(), scaled); });
}

} // namespace
} // namespace flashomp::testing
