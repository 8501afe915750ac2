#include "convert.hpp"

#include "io_support.hpp"

#include <cmath>
#include <limits>

namespace flashomp::io::test {
namespace {

/// One 16-bit format under test.
struct Format {
    const char* name;
    int exponent_bits;
    int fraction_bits;
    float (*widen)(std::uint16_t);
    std::uint16_t (*narrow)(double);

    [[nodiscard]] std::uint16_t infinity() const
    {
        return static_cast<std::uint16_t>(0x7fff << fraction_bits & 0x7fff);
    }

    /// The value of `bits` by the definition of the format, NaN aside.
    [[nodiscard]] double value(std::uint16_t bits) const
    {
        const int bias = (1 << (exponent_bits - 1)) - 1;
        const int exponent = (bits & 0x7fff) >> fraction_bits;
        const int fraction = bits & ((1 << fraction_bits) - 1);
        double magnitude = 0.0;
        if (exponent == (1 << exponent_bits) - 1) {
            magnitude = std::numeric_limits<double>::infinity();
        } else if (exponent == 0) {
            magnitude = std::ldexp(fraction, 1 - bias - fraction_bits);
        } else {
            magnitude = std::ldexp(fraction + (1 << fraction_bits), exponent - bias - fraction_bits);
        }
        return (bits & 0x8000) != 0 ? -magnitude : magnitude;
    }
};

class Convert : public ::testing::TestWithParam<Format> {};

TEST_P(Convert, WidensEveryValueExactlyAndBack)
{
    const Format& format = GetParam();
    for (int i = 0; i <= 0xffff; ++i) {
        const auto bits = static_cast<std::uint16_t>(i);
        const float widened = format.widen(bits);
        if ((bits & 0x7fff) > format.infinity()) {
            const int quiet_bit = 1 << (format.fraction_bits - 1);
            ASSERT_TRUE(std::isnan(widened)) << i;
            ASSERT_EQ(format.narrow(widened), bits | quiet_bit) << i;
            continue;
        }
        ASSERT_EQ(static_cast<double>(widened), format.value(bits)) << i;
        ASSERT_EQ(std::signbit(widened), (bits & 0x8000) != 0) << i;
        ASSERT_EQ(format.narrow(widened), bits) << i;
    }
}

TEST_P(Convert, RoundsToNearestAndTiesToEvenBetweenAllNeighbours)
{
    const Format& format = GetParam();
    for (int i = 0; i < format.infinity(); ++i) {
        const auto below = static_cast<std::uint16_t>(i);
        const auto above = static_cast<std::uint16_t>(i + 1);
        // Beyond the largest number the tie is with the number that one more exponent would allow.
        const double step = above == format.infinity()
                                ? format.value(below) - format.value(static_cast<uint16_t>(i - 1))
                                : format.value(above) - format.value(below);
        const double tie = format.value(below) + step / 2;
        const std::uint16_t even = (i % 2) == 0 ? below : above;
        for (const int sign : {0, 0x8000}) {
            const double factor = sign == 0 ? 1.0 : -1.0;
            ASSERT_EQ(format.narrow(factor * tie), even | sign) << i;
            // One unit of a double off the tie: rounding through a float first would lose it.
            ASSERT_EQ(format.narrow(factor * std::nextafter(tie, 0.0)), below | sign) << i;
            ASSERT_EQ(format.narrow(factor * std::nextafter(tie, 1e300)), above | sign) << i;
            ASSERT_EQ(format.narrow(factor * (format.value(below) + step * 0.375)), below | sign) << i;
            ASSERT_EQ(format.narrow(factor * (format.value(below) + step * 0.625)), above | sign) << i;
        }
    }
}

TEST_P(Convert, KeepsWhatIsSpecial)
{
    const Format& format = GetParam();
    using Double = std::numeric_limits<double>;
    EXPECT_EQ(format.narrow(0.0), 0);
    EXPECT_EQ(format.narrow(-0.0), 0x8000);
    EXPECT_EQ(format.narrow(Double::infinity()), format.infinity());
    EXPECT_EQ(format.narrow(-Double::infinity()), format.infinity() | 0x8000);
    EXPECT_EQ(format.narrow(Double::max()), format.infinity());
    EXPECT_EQ(format.narrow(Double::min()), 0);
    EXPECT_EQ(format.narrow(-Double::denorm_min()), 0x8000);
    EXPECT_TRUE(std::isnan(format.widen(format.narrow(Double::quiet_NaN()))));
    // A NaN whose payload lies in the dropped bits only must not turn into an infinity.
    const auto low_payload = std::bit_cast<double>(std::uint64_t{0x7ff0000000000001});
    EXPECT_TRUE(std::isnan(format.widen(format.narrow(low_payload))));
}

INSTANTIATE_TEST_SUITE_P(Formats, Convert,
                         ::testing::Values(Format{"float16", 5, 10, float_from_float16, float16_from},
                                           Format{"bfloat16", 8, 7, float_from_bfloat16, bfloat16_from}),
                         [](const auto& parameter) { return std::string(parameter.param.name); });

TEST(ConvertConstants, AreKnown)
{
    static_assert(float16_from(1.0) == 0x3c00);
    static_assert(float16_from(65504.0) == 0x7bff);
    static_assert(float16_from(65520.0) == 0x7c00);
    static_assert(float16_from(0x1p-24) == 0x0001);
    static_assert(float16_from(0x1p-25) == 0x0000);
    static_assert(bfloat16_from(1.0) == 0x3f80);
    static_assert(bfloat16_from(-2.5) == 0xc020);
    static_assert(float_from_float16(0x3555) == 0.333251953125F);
    static_assert(float_from_bfloat16(0x4049) == 3.140625F);
}

template <class Value>
HostTensor tensor_of(DType dtype, const std::vector<Value>& values)
{
    HostTensor tensor(dtype, {static_cast<std::int64_t>(values.size())});
    std::memcpy(tensor.data(), values.data(), values.size() * sizeof(Value));
    return tensor;
}

TEST(Converted, CarriesEveryFloatTypeIntoEveryOther)
{
    const std::vector<double> values{0.0, -0.0, 1.0, -2.5, 0x1p-24, 240.0, std::numeric_limits<double>::infinity()};
    const HostTensor start = tensor_of(DType::float64, values);
    for (const DType from : {DType::float16, DType::bfloat16, DType::float32, DType::float64}) {
        for (const DType to : {DType::float16, DType::bfloat16, DType::float32, DType::float64}) {
            const HostTensor there = converted(converted(start, from), to);
            EXPECT_EQ(there.dtype(), to);
            expect_same(converted(there, DType::float64), start);
        }
    }
}

TEST(Converted, RoundsADoubleToHalfOnce)
{
    // 1 + 2^-11 + 2^-40: as a float it becomes the tie 1 + 2^-11, which would then go down to 1.
    const HostTensor half = converted(tensor_of(DType::float64, std::vector{1.0 + 0x1p-11 + 0x1p-40}), DType::float16);
    EXPECT_EQ(*static_cast<const std::uint16_t*>(half.data()), 0x3c01);
}

TEST(Converted, IntegersWidenAndNarrowWhenTheyFit)
{
    const std::vector<std::int32_t> values{0, 1, -1, 2147483647, -2147483647 - 1};
    const HostTensor narrow = tensor_of(DType::int32, values);
    const HostTensor wide = converted(narrow, DType::int64);
    EXPECT_EQ(static_cast<const std::int64_t*>(wide.data())[4], -2147483648);
    expect_same(converted(wide, DType::int32), narrow);
    expect_sentence(
        sentence_of([&] {
            return converted(tensor_of(DType::int64, std::vector<std::int64_t>{7, 2147483648}), DType::int32);
        }),
        "Element 1 of a tensor to convert from int64 to int32 is 2147483648");
}

TEST(Converted, CopiesTheSameTypeAndRefusesTheRest)
{
    for (const DType from : all_dtypes) {
        const HostTensor tensor = patterned(from, {2, 3});
        expect_same(converted(tensor, from), tensor);
    }
    for (const auto& [from, to] :
         {std::pair{DType::int32, DType::float32}, std::pair{DType::float64, DType::int64},
          std::pair{DType::boolean, DType::int32}, std::pair{DType::float16, DType::boolean}}) {
        const HostTensor tensor(from, {1});
        expect_sentence(sentence_of([&, target = to] { return converted(tensor, target); }), "cannot be converted to");
    }
}

} // namespace
} // namespace flashomp::io::test
