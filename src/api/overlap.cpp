#include "overlap.hpp"

#include <algorithm>
#include <vector>

namespace flashomp {

namespace {

struct Axis {
    std::int64_t extent, stride;
};

/// Axes with more than one element, widest stride first.
std::vector<Axis> axes_of(const ConstTensorView& view)
{
    std::vector<Axis> axes;
    for (int axis = 0; axis < view.rank; ++axis) {
        const auto a = static_cast<std::size_t>(axis);
        if (view.shape.at(a) > 1) {
            axes.push_back({view.shape.at(a), view.strides.at(a)});
        }
    }
    std::sort(axes.begin(), axes.end(), [](const Axis& x, const Axis& y) { return x.stride > y.stride; });
    return axes;
}

/// Elements from the first to the last, inclusive, of a view that has any.
std::int64_t span_of(const ConstTensorView& view)
{
    std::int64_t span = 1;
    for (std::size_t axis = 0; axis < static_cast<std::size_t>(view.rank); ++axis) {
        span += (view.shape.at(axis) - 1) * view.strides.at(axis);
    }
    return span;
}

/// Whether a sum of d·stride with |d| < extent, one d an axis from `first` on, makes `offset`. Takes at most so many
/// steps to find out, then true.
bool reaches(const std::vector<Axis>& axes, std::size_t first, std::int64_t offset, int& steps)
{
    if (first == axes.size()) {
        return offset == 0;
    }
    const auto [extent, stride] = axes[first];
    std::int64_t rest = 0; // what the narrower axes can make at most
    for (std::size_t i = first + 1; i < axes.size(); ++i) {
        rest += (axes[i].extent - 1) * axes[i].stride;
    }
    const std::int64_t last = std::min(extent - 1, (offset + rest) / stride + 1);
    for (std::int64_t d = std::max(1 - extent, (offset - rest) / stride - 1); d <= last; ++d) {
        if (--steps < 0 || reaches(axes, first + 1, offset - d * stride, steps)) {
            return true;
        }
    }
    return false;
}

} // namespace

bool overlaps_itself(const ConstTensorView& view)
{
    if (view.elements() == 0) {
        return false;
    }
    std::int64_t inner = 1; // elements spanned by the narrower axes
    const std::vector<Axis> axes = axes_of(view);
    for (auto axis = axes.rbegin(); axis != axes.rend(); ++axis) {
        if (axis->stride < inner) {
            return true;
        }
        inner += (axis->extent - 1) * axis->stride;
    }
    return false;
}

bool overlap(const ConstTensorView& a, const ConstTensorView& b)
{
    if (a.elements() == 0 || b.elements() == 0 || a.memory != b.memory) {
        return false;
    }
    const char* a_begin = static_cast<const char*>(a.data);
    const char* b_begin = static_cast<const char*>(b.data);
    const char* a_end = a_begin + span_of(a) * size_of(a.dtype);
    const char* b_end = b_begin + span_of(b) * size_of(b.dtype);
    if (a_end <= b_begin || b_end <= a_begin) {
        return false;
    }
    const std::int64_t bytes = b_begin - a_begin;
    if (a.rank != b.rank || a.dtype != b.dtype || a.strides != b.strides || bytes % size_of(a.dtype) != 0 ||
        overlaps_itself(a) || overlaps_itself(b)) {
        return true;
    }
    ConstTensorView widest = a;
    for (int axis = 0; axis < a.rank; ++axis) {
        const auto i = static_cast<std::size_t>(axis);
        widest.shape.at(i) = std::max(a.shape.at(i), b.shape.at(i));
    }
    int steps = 1 << 20; // a millisecond or a few
    return reaches(axes_of(widest), 0, bytes / size_of(a.dtype), steps);
}

} // namespace flashomp
