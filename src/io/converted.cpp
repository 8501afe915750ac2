#include "convert.hpp"
#include "host_tensor.hpp"

#include "flashomp/error.hpp"
#include "float8.hpp"

#include <cstdint>
#include <limits>

#include <fmt/format.h>

namespace flashomp::io {

namespace {

// One floating-point format each: how an element is stored, and its value as a double (exact for all).

struct Float8E4m3 {
    using Stored = std::uint8_t;
    static double widen(Stored stored) { return float_from_float8_e4m3(stored); }
    static Stored narrow(double value) { return float8_e4m3_from(value); }
};

struct Float16 {
    using Stored = std::uint16_t;
    static double widen(Stored stored) { return float_from_float16(stored); }
    static Stored narrow(double value) { return float16_from(value); }
};

struct Bfloat16 {
    using Stored = std::uint16_t;
    static double widen(Stored stored) { return float_from_bfloat16(stored); }
    static Stored narrow(double value) { return bfloat16_from(value); }
};

struct Float32 {
    using Stored = float;
    static double widen(Stored stored) { return stored; }
    static Stored narrow(double value) { return static_cast<float>(value); }
};

struct Float64 {
    using Stored = double;
    static double widen(Stored stored) { return stored; }
    static Stored narrow(double value) { return value; }
};

/// Calls `use` with the format of `dtype`; false when `dtype` is no floating-point type.
template <class Use>
bool with_float_format(DType dtype, Use use)
{
    switch (dtype) {
    case DType::float8_e4m3:
        use(Float8E4m3{});
        return true;
    case DType::float16:
        use(Float16{});
        return true;
    case DType::bfloat16:
        use(Bfloat16{});
        return true;
    case DType::float32:
        use(Float32{});
        return true;
    case DType::float64:
        use(Float64{});
        return true;
    case DType::int32:
    case DType::int64:
    case DType::boolean:
    case DType::bits:
    case DType::int8:
        return false;
    }
    return false;
}

template <class From, class To>
void convert_floats(const HostTensor& source, HostTensor& target)
{
    const auto* const from = static_cast<const typename From::Stored*>(source.data());
    auto* const to = static_cast<typename To::Stored*>(target.data());
    const std::int64_t count = source.elements();
    for (std::int64_t i = 0; i < count; ++i) {
        to[i] = To::narrow(From::widen(from[i]));
    }
}

void widen_integers(const HostTensor& source, HostTensor& target)
{
    const auto* const from = static_cast<const std::int32_t*>(source.data());
    auto* const to = static_cast<std::int64_t*>(target.data());
    const std::int64_t count = source.elements();
    for (std::int64_t i = 0; i < count; ++i) {
        to[i] = from[i];
    }
}

void narrow_integers(const HostTensor& source, HostTensor& target)
{
    using Limits = std::numeric_limits<std::int32_t>;
    const auto* const from = static_cast<const std::int64_t*>(source.data());
    auto* const to = static_cast<std::int32_t*>(target.data());
    const std::int64_t count = source.elements();
    for (std::int64_t i = 0; i < count; ++i) {
        if (from[i] < Limits::min() || from[i] > Limits::max()) {
            throw Error(
                fmt::format("Element {} of a tensor to convert from int64 to int32 is {}; {} to {} are allowed.", i,
                            from[i], Limits::min(), Limits::max()));
        }
        to[i] = static_cast<std::int32_t>(from[i]);
    }
}

} // namespace

HostTensor converted(const HostTensor& tensor, DType to)
{
    if (tensor.data() == nullptr) { // else a rank of 0 would be one element
        return {};
    }
    if (tensor.dtype() == to) {
        return HostTensor::copy_of(tensor.view());
    }
    HostTensor result(to, tensor.shape(), Fill::nothing);
    bool done = false;
    with_float_format(tensor.dtype(), [&](auto from_format) {
        done = with_float_format(
            to, [&](auto to_format) { convert_floats<decltype(from_format), decltype(to_format)>(tensor, result); });
    });
    if (tensor.dtype() == DType::int32 && to == DType::int64) {
        widen_integers(tensor, result);
        done = true;
    } else if (tensor.dtype() == DType::int64 && to == DType::int32) {
        narrow_integers(tensor, result);
        done = true;
    }
    if (!done) {
        throw Error(fmt::format("A {} tensor cannot be converted to {}; floating-point types convert among each other, "
                                "and so do int32 and int64.",
                                name_of(tensor.dtype()), name_of(to)));
    }
    return result;
}

std::vector<double> doubles(const HostTensor& tensor)
{
    const HostTensor wide = converted(tensor, DType::float64);
    const auto* const first = static_cast<const double*>(wide.data());
    return {first, first + wide.elements()};
}

} // namespace flashomp::io
