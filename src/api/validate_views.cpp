#include "validate_views.hpp"

#include <cstdint>
#include <fmt/format.h>

namespace flashomp {

namespace {

/// More than the memory of any process: 2^56 bytes. Sums of a few such distances are still numbers.
constexpr std::int64_t most_bytes = std::int64_t{1} << 56;

/// The product of the extents, those of 0 counted as 1; none where it is beyond 2^62.
bool is_countable(const ConstTensorView& view)
{
    std::int64_t count = 1;
    for (int axis = 0; axis < view.rank; ++axis) {
        const std::int64_t extent = view.shape.at(static_cast<std::size_t>(axis));
        if (extent > 1 && (__builtin_mul_overflow(count, extent, &count) || count > std::int64_t{1} << 62)) {
            return false;
        }
    }
    return true;
}

/// Whether the distance in bytes from the first element to the last, and a step along any axis, fit a memory.
bool is_near(const ConstTensorView& view)
{
    const std::int64_t size = size_of(view.dtype);
    std::int64_t last = 0;
    for (int axis = 0; axis < view.rank; ++axis) {
        const auto a = static_cast<std::size_t>(axis);
        const std::int64_t steps = view.shape.at(a) > 1 ? view.shape.at(a) - 1 : 1;
        std::int64_t distance = 0;
        if (__builtin_mul_overflow(steps, view.strides.at(a), &distance) || distance > most_bytes / size) {
            return false;
        }
        last += view.shape.at(a) > 1 ? distance : 0;
    }
    return last < most_bytes / size;
}

} // namespace

void check_view(const char* name, const ConstTensorView& view)
{
    if (view.rank < 0 || view.rank > ConstTensorView::max_rank) {
        throw Error(fmt::format("{} has {} axes; it must have 0 (not given) to {}.", name, view.rank,
                                ConstTensorView::max_rank));
    }
    if (view.dtype > DType::int8) {
        throw Error(
            fmt::format("{} has dtype {}; it must be an enumerator of DType.", name, static_cast<int>(view.dtype)));
    }
    if (view.memory > Memory::device) {
        throw Error(fmt::format("{} has memory {}; it must be Memory::host or Memory::device.", name,
                                static_cast<int>(view.memory)));
    }
}

void check_layout(const char* name, const ConstTensorView& view, bool has_any_strides)
{
    for (int axis = 0; axis < view.rank; ++axis) {
        const auto a = static_cast<std::size_t>(axis);
        if (view.shape.at(a) < 0 || view.strides.at(a) < 0) {
            throw Error(fmt::format("{} has extent {} and stride {} on axis {}; both must be 0 or more.", name,
                                    view.shape.at(a), view.strides.at(a), axis));
        }
    }
    if (!is_countable(view)) {
        throw Error(fmt::format("{} has shape {}; it must have at most 2^62 elements.", name, shape_string(view)));
    }
    if (!is_near(view)) {
        ConstTensorView strides = view;
        strides.shape = view.strides;
        throw Error(fmt::format("{} has shape {} and strides {}; its elements must lie within 2^56 bytes.", name,
                                shape_string(view), shape_string(strides)));
    }
    if (view.data == nullptr && view.elements() > 0) {
        throw Error(fmt::format("{} has shape {} but its data is null; it must point to its elements.", name,
                                shape_string(view)));
    }
    if (const auto last = static_cast<std::size_t>(view.rank - 1);
        !has_any_strides && view.shape.at(last) > 1 && view.strides.at(last) != 1) {
        throw Error(fmt::format("{} has stride {} on its last axis; it must be 1.", name, view.strides.at(last)));
    }
    const auto address = reinterpret_cast<std::uintptr_t>(view.data);
    if (address % static_cast<std::uintptr_t>(size_of(view.dtype)) != 0) {
        throw Error(fmt::format("{} begins at address {:#x}; as {} it must be a multiple of {}.", name, address,
                                name_of(view.dtype), size_of(view.dtype)));
    }
}

void check_extent(const char* name, const char* what, std::int64_t extent, std::int64_t most)
{
    if (extent < 0 || extent > most) {
        throw Error(fmt::format("{} has {} {}; at most {} are allowed.", name, extent, what, most));
    }
}

void check_head_dim(const char* name, std::int64_t dim, std::int64_t most)
{
    if (dim < 1 || dim > most) {
        throw Error(fmt::format("{} has head_dim {}; it must be 1 to {}.", name, dim, most));
    }
}

} // namespace flashomp
