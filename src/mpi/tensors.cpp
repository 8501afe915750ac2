#include "tensors.hpp"

#include "convert.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>

namespace flashomp::mpi {

namespace {

/// Calls f(index of the first three axes as offsets in elements of a and of b) for each row of the last axis.
template <class F>
void each_row(const ConstTensorView& a, const ConstTensorView& b, F f)
{
    std::array<std::int64_t, 4> extent{1, 1, 1, 1}, stride_a{}, stride_b{};
    for (int axis = 0; axis < a.rank; ++axis) { // aligned at the last axis
        const auto from = static_cast<std::size_t>(axis), to = from + 4 - static_cast<std::size_t>(a.rank);
        extent.at(to) = a.shape.at(from);
        stride_a.at(to) = a.strides.at(from);
        stride_b.at(to) = b.strides.at(from);
    }
    if (extent[3] == 0) {
        return;
    }
    for (std::int64_t x = 0; x < extent[0]; ++x) {
        for (std::int64_t y = 0; y < extent[1]; ++y) {
            for (std::int64_t z = 0; z < extent[2]; ++z) {
                f(x * stride_a[0] + y * stride_a[1] + z * stride_a[2],
                  x * stride_b[0] + y * stride_b[1] + z * stride_b[2]);
            }
        }
    }
}

std::int64_t last_extent(const ConstTensorView& view)
{
    return view.shape.at(static_cast<std::size_t>(view.rank - 1));
}

std::int64_t last_stride(const ConstTensorView& view)
{
    return view.strides.at(static_cast<std::size_t>(view.rank - 1));
}

/// to = f(from), element by element.
template <class To, class From, class F>
void each_element(const ConstTensorView& from, const TensorView& to, F f)
{
    const std::int64_t count = last_extent(from), step_from = last_stride(from), step_to = last_stride(to);
    each_row(from, to, [&](std::int64_t at_from, std::int64_t at_to) {
        const From* const source = static_cast<const From*>(from.data) + at_from;
        To* const target = static_cast<To*>(to.data) + at_to;
        for (std::int64_t i = 0; i < count; ++i) {
            target[i * step_to] = f(source[i * step_from]);
        }
    });
}

} // namespace

void copy(const ConstTensorView& from, const TensorView& to)
{
    const std::int64_t count = last_extent(from), bytes = size_of(from.dtype);
    const std::int64_t step_from = last_stride(from), step_to = last_stride(to);
    each_row(from, to, [&](std::int64_t at_from, std::int64_t at_to) {
        const auto* const source = static_cast<const std::byte*>(from.data) + at_from * bytes;
        auto* const target = static_cast<std::byte*>(to.data) + at_to * bytes;
        if ((step_from == 1 && step_to == 1) || count == 1) {
            std::memcpy(target, source, static_cast<std::size_t>(count * bytes));
            return;
        }
        for (std::int64_t i = 0; i < count; ++i) {
            std::memcpy(target + i * step_to * bytes, source + i * step_from * bytes, static_cast<std::size_t>(bytes));
        }
    });
}

void add(const ConstTensorView& terms, const TensorView& sums)
{
    const std::int64_t count = last_extent(terms), step_terms = last_stride(terms), step_sums = last_stride(sums);
    each_row(terms, sums, [&](std::int64_t at_terms, std::int64_t at_sums) {
        const float* const term = static_cast<const float*>(terms.data) + at_terms;
        float* const sum = static_cast<float*>(sums.data) + at_sums;
        if (step_terms == 1 && step_sums == 1) {
            std::transform(sum, sum + count, term, sum, std::plus<>());
            return;
        }
        for (std::int64_t i = 0; i < count; ++i) {
            sum[i * step_sums] += term[i * step_terms];
        }
    });
}

void convert(const ConstTensorView& from, const TensorView& to)
{
    if (from.dtype == to.dtype) {
        copy(from, to);
    } else if (from.dtype == DType::bfloat16) {
        each_element<float, std::uint16_t>(from, to, io::float_from_bfloat16);
    } else if (from.dtype == DType::float16) {
        each_element<float, std::uint16_t>(from, to, io::float_from_float16);
    } else if (to.dtype == DType::bfloat16) {
        each_element<std::uint16_t, float>(from, to, [](float x) { return io::bfloat16_from(static_cast<double>(x)); });
    } else {
        each_element<std::uint16_t, float>(from, to, [](float x) { return io::float16_from(static_cast<double>(x)); });
    }
}

void unpack_bits(const ConstTensorView& bits, std::int64_t first, const TensorView& booleans)
{
    const std::int64_t count = last_extent(booleans), step = last_stride(bits);
    each_row(bits, booleans, [&](std::int64_t at_bits, std::int64_t at_booleans) {
        const auto* const source = static_cast<const std::uint8_t*>(bits.data) + at_bits;
        auto* const target = static_cast<std::uint8_t*>(booleans.data) + at_booleans;
        for (std::int64_t i = 0; i < count; ++i) {
            const std::int64_t key = first + i;
            target[i] = static_cast<std::uint8_t>((source[key / 8 * step] >> (key % 8)) & 1);
        }
    });
}

void fill(const TensorView& tensor, float value)
{
    const std::int64_t count = last_extent(tensor), step = last_stride(tensor);
    each_row(tensor, tensor, [&](std::int64_t at, std::int64_t /*same*/) {
        float* const values = static_cast<float*>(tensor.data) + at;
        for (std::int64_t i = 0; i < count; ++i) {
            values[i * step] = value;
        }
    });
}

} // namespace flashomp::mpi
