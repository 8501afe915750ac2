// Reading and writing single tensor elements of any dtype as double.
#pragma once

#include "eigen.hpp"
#include "float8.hpp"

#include "flashomp/tensor.hpp"

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

namespace flashomp::reference {

/// Rounds to float so that a second rounding, to 16 bits, ends as if there had been only one: an inexact value takes
/// the neighbour with an odd last bit, which no 16-bit tie has.
[[nodiscard]] inline float to_odd_float(double value)
{
    const float nearest = static_cast<float>(value);
    const double difference = value - static_cast<double>(nearest);
    const bool even = (std::bit_cast<std::uint32_t>(nearest) & 1U) == 0;
    if (!even || !std::isfinite(nearest) || difference == 0.0) {
        return nearest;
    }
    constexpr float infinity = std::numeric_limits<float>::infinity();
    return std::nextafter(nearest, difference > 0.0 ? infinity : -infinity);
}

/// `value` rounded to nearest even without its last `bits` bits. Free of branches, so that compilers vectorise it.
template <int bits>
[[nodiscard]] inline float without_last_bits(float value)
{
    const auto pattern = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t half = (1U << (bits - 1)) - 1U + ((pattern >> bits) & 1U);
    const auto cut = std::bit_cast<float>((pattern + half) & ~((1U << bits) - 1U));
    return value != value ? value : cut; // a NaN's bits could carry into infinity or zero
}

[[nodiscard]] inline float round_to_bfloat16(float value)
{
    return without_last_bits<16>(value);
}

[[nodiscard]] inline float round_to_float16(float value)
{
    const float magnitude = std::abs(value);
    const float normal = without_last_bits<13>(magnitude);
    const float subnormal = (magnitude + 0.5F) - 0.5F; // 2^-24, float16's smallest step, is the last bit of 0.5
    const float rounded = magnitude < 0x1p-14F ? subnormal : normal;
    return std::copysign(rounded > 65504.0F ? std::numeric_limits<float>::infinity() : rounded, value);
}

/// Bytes are copied and not cast, so that memory of any type and alignment may hold the elements.
template <class Type>
[[nodiscard]] Type load_as(const void* data, std::int64_t index)
{
    Type value;
    std::memcpy(&value, static_cast<const std::byte*>(data) + index * std::int64_t{sizeof(Type)}, sizeof(Type));
    return value;
}

template <class Type>
void store_as(void* data, std::int64_t index, Type value)
{
    std::memcpy(static_cast<std::byte*>(data) + index * std::int64_t{sizeof(Type)}, &value, sizeof(Type));
}

/// Element `index` (in elements, not bytes) of the view's memory.
[[nodiscard]] inline double read_element(const ConstTensorView& view, std::int64_t index)
{
    switch (view.dtype) {
    case DType::float8_e4m3:
        return static_cast<double>(float_from_float8_e4m3(load_as<std::uint8_t>(view.data, index)));
    case DType::int8:
        return static_cast<double>(load_as<std::int8_t>(view.data, index));
    case DType::float16:
        return static_cast<double>(std::bit_cast<Eigen::half>(load_as<std::uint16_t>(view.data, index)));
    case DType::bfloat16:
        return static_cast<double>(std::bit_cast<Eigen::bfloat16>(load_as<std::uint16_t>(view.data, index)));
    case DType::float32:
        return static_cast<double>(load_as<float>(view.data, index));
    case DType::float64:
        return load_as<double>(view.data, index);
    case DType::int32:
        return static_cast<double>(load_as<std::int32_t>(view.data, index));
    case DType::int64:
        return static_cast<double>(load_as<std::int64_t>(view.data, index));
    case DType::bits: // 8 booleans (Head::dense_mask)
    case DType::boolean:
        return load_as<std::uint8_t>(view.data, index) != 0 ? 1.0 : 0.0;
    }
    return 0.0;
}

/// Writes `value` rounded once, to nearest even, to the view's dtype. Outputs are floating point.
inline void write_element(const TensorView& view, std::int64_t index, double value)
{
    switch (view.dtype) {
    case DType::float16:
        store_as(view.data, index, std::bit_cast<std::uint16_t>(static_cast<Eigen::half>(to_odd_float(value))));
        break;
    case DType::bfloat16:
        store_as(view.data, index, std::bit_cast<std::uint16_t>(static_cast<Eigen::bfloat16>(to_odd_float(value))));
        break;
    case DType::float32:
        store_as(view.data, index, static_cast<float>(value));
        break;
    case DType::float64:
        store_as(view.data, index, value);
        break;
    case DType::float8_e4m3: // of inputs only
    case DType::int8:
    case DType::int32:
    case DType::int64:
    case DType::boolean:
    case DType::bits:
        break;
    }
}

} // namespace flashomp::reference
