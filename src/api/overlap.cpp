#include "overlap.hpp"

#include <algorithm>
#include <array>
#include <span>

namespace flashomp {

namespace {

struct Axis {
    std::int64_t extent, stride;
};

/// Axes with more than one element, widest stride first.
class Axes {
public:
    explicit Axes(const ConstTensorView& view)
    {
        for (std::size_t axis = 0; axis < static_cast<std::size_t>(view.rank); ++axis) {
            if (view.shape.at(axis) > 1) {
                insert({view.shape.at(axis), view.strides.at(axis)});
            }
        }
    }

    [[nodiscard]] std::span<const Axis> all() const { return std::span(axes_).first(count_); }

private:
    void insert(const Axis& axis)
    {
        std::size_t at = count_++;
        for (; at > 0 && axes_.at(at - 1).stride < axis.stride; --at) {
            axes_.at(at) = axes_.at(at - 1);
        }
        axes_.at(at) = axis;
    }

    std::array<Axis, ConstTensorView::max_rank> axes_{};
    std::size_t count_ = 0;
};

/// Elements from the first to the last, inclusive, of a view that has any.
std::int64_t span_of(const ConstTensorView& view)
{
    std::int64_t span = 1;
    for (std::size_t axis = 0; axis < static_cast<std::size_t>(view.rank); ++axis) {
        span += (view.shape.at(axis) - 1) * view.strides.at(axis);
    }
    return span;
}

/// Whether a sum of d·stride with |d| < extent, one d an axis, makes `offset`. Takes at most so many steps to find out,
/// then true.
bool reaches(std::span<const Axis> axes, std::int64_t offset, int& steps)
{
    if (axes.empty()) {
        return offset == 0;
    }
    const auto [extent, stride] = axes.front();
    std::int64_t rest = 0; // what the narrower axes can make at most
    for (const Axis& narrower : axes.subspan(1)) {
        rest += (narrower.extent - 1) * narrower.stride;
    }
    const std::int64_t last = std::min(extent - 1, (offset + rest) / stride + 1);
    for (std::int64_t d = std::max(1 - extent, (offset - rest) / stride - 1); d <= last; ++d) {
        if (--steps < 0 || reaches(axes.subspan(1), offset - d * stride, steps)) {
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
    const Axes axes(view);
    for (std::size_t i = axes.all().size(); i-- > 0;) { // the narrowest first
        const auto [extent, stride] = axes.all()[i];
        if (stride < inner) {
            return true;
        }
        inner += (extent - 1) * stride;
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
    return reaches(Axes(widest).all(), bytes / size_of(a.dtype), steps);
}

} // namespace flashomp
