// From the elements of one strided tensor to those of another: copied, converted, added, filled, or unpacked from bits.
// What parts of a call are put together by (src/mpi), once for host threads, target regions and CUDA.
#pragma once

#include "algorithm/element.hpp"
#include "algorithm/team_memory.hpp"

#pragma omp declare target

namespace flashomp::offload {

enum class ElementsWork : int {
    copy,    ///< bit for bit, elements of `bytes`
    convert, ///< rounded once
    add,     ///< to += from, both float32
    fill,    ///< to = value, float32
    unpack   ///< booleans [.., .., .., n] from bits: those from `first` on
};

/// Axes are in the order of both tensors' shape, those that they lack in front with extent 1; strides count elements.
struct ElementsParams {
    ElementsWork work = ElementsWork::copy;
    int bytes = 4; ///< 1, 2 or 4
    Element from_element = Element::float32, to_element = Element::float32;
    const void* from = nullptr;
    void* to = nullptr;
    std::int64_t extent[4] = {1, 1, 1, 1};
    std::int64_t from_stride[4] = {}, to_stride[4] = {};
    std::int64_t first = 0;
    float value = 0.0F;
};

/// A unit is some elements of the last axis.
inline constexpr int elements_of_unit = 1024;

struct ElementsUnit {
    std::int64_t from_offset = 0, to_offset = 0;
    std::int64_t first = 0; ///< its first element on the last axis
    int count = 0;
};

FLASHOMP_INLINE std::int64_t elements_units(const ElementsParams& p)
{
    const std::int64_t units_of_row = (p.extent[3] + elements_of_unit - 1) / elements_of_unit;
    return p.extent[0] * p.extent[1] * p.extent[2] * units_of_row;
}

FLASHOMP_INLINE ElementsUnit elements_unit(const ElementsParams& p, std::int64_t number)
{
    const std::int64_t units_of_row = (p.extent[3] + elements_of_unit - 1) / elements_of_unit;
    const std::int64_t row = number / units_of_row;
    const std::int64_t rows = row / p.extent[2];
    const std::int64_t x = rows / p.extent[1], y = rows - x * p.extent[1], z = row - rows * p.extent[2];
    ElementsUnit unit;
    unit.first = (number - row * units_of_row) * elements_of_unit;
    unit.from_offset = x * p.from_stride[0] + y * p.from_stride[1] + z * p.from_stride[2];
    unit.to_offset = x * p.to_stride[0] + y * p.to_stride[1] + z * p.to_stride[2] + unit.first * p.to_stride[3];
    const std::int64_t left = p.extent[3] - unit.first;
    unit.count = left < elements_of_unit ? static_cast<int>(left) : elements_of_unit;
    return unit;
}

template <class T>
FLASHOMP_INLINE void copy_element(const ElementsParams& p, std::int64_t from, std::int64_t to)
{
    static_cast<T*>(p.to)[to] = static_cast<const T*>(p.from)[from];
}

/// Element i of a unit.
FLASHOMP_INLINE void elements_slot(const ElementsParams& p, const ElementsUnit& unit, int i)
{
    const std::int64_t to = unit.to_offset + i * p.to_stride[3];
    const std::int64_t from = unit.from_offset + (unit.first + i) * p.from_stride[3];
    switch (p.work) {
    case ElementsWork::copy:
        if (p.bytes == 1) {
            copy_element<std::uint8_t>(p, from, to);
        } else if (p.bytes == 2) {
            copy_element<std::uint16_t>(p, from, to);
        } else {
            copy_element<std::uint32_t>(p, from, to);
        }
        break;
    case ElementsWork::convert:
        write_element(p.to, p.to_element, to, read_element(p.from, p.from_element, from));
        break;
    case ElementsWork::add:
        static_cast<float*>(p.to)[to] += static_cast<const float*>(p.from)[from];
        break;
    case ElementsWork::fill:
        static_cast<float*>(p.to)[to] = p.value;
        break;
    case ElementsWork::unpack: {
        const std::int64_t bit = p.first + unit.first + i;
        const auto byte = static_cast<const std::uint8_t*>(p.from)[unit.from_offset + bit / 8 * p.from_stride[3]];
        static_cast<std::uint8_t*>(p.to)[to] = static_cast<std::uint8_t>((byte >> (bit % 8)) & 1);
        break;
    }
    }
}

/// One unit, by all threads of a crew together.
FLASHOMP_INLINE void elements_one(const ElementsParams& p, std::int64_t number)
{
    const ElementsUnit unit = elements_unit(p, number);
    const int count = unit.count;
    FLASHOMP_FOR_CREW (i, count) {
        elements_slot(p, unit, i);
    }
}

} // namespace flashomp::offload

#pragma omp end declare target
