#include "staging.hpp"

#include "row_major.hpp"

#include <cstring>

namespace flashomp {

namespace {

/// Copies a strided host tensor onto another of the same shape, one run of the last axis at a time.
void copy_strided(const TensorView& target, const ConstTensorView& source, int axis = 0, std::int64_t to = 0,
                  std::int64_t from = 0)
{
    const auto a = static_cast<std::size_t>(axis);
    const std::int64_t size = size_of(source.dtype);
    if (axis == source.rank - 1 && source.strides.at(a) == 1 && target.strides.at(a) == 1) {
        std::memcpy(static_cast<char*>(target.data) + to * size, static_cast<const char*>(source.data) + from * size,
                    static_cast<std::size_t>(source.shape.at(a) * size));
        return;
    }
    for (std::int64_t i = 0; i < source.shape.at(a); ++i) {
        const std::int64_t to_i = to + i * target.strides.at(a);
        const std::int64_t from_i = from + i * source.strides.at(a);
        if (axis == source.rank - 1) {
            std::memcpy(static_cast<char*>(target.data) + to_i * size,
                        static_cast<const char*>(source.data) + from_i * size, static_cast<std::size_t>(size));
        } else {
            copy_strided(target, source, axis + 1, to_i, from_i);
        }
    }
}

} // namespace

TensorView Staging::reserve(const ConstTensorView& view)
{
    const std::int64_t bytes = view.elements() * size_of(view.dtype);
    copies_.emplace_back(bytes, space_);
    bytes_ += bytes;
    return row_major(copies_.back().data(), view, Memory::device);
}

const void* Staging::bytes(const void* data, std::int64_t size)
{
    if (size == 0 || space_.is_host()) {
        return size == 0 ? nullptr : data;
    }
    copies_.emplace_back(size, space_);
    bytes_ += size;
    copy_in(copies_.back().data(), space_, data, size);
    return copies_.back().data();
}

ConstTensorView Staging::input(const ConstTensorView& view)
{
    if (space_.is_host() || view.memory == Memory::device || !view) {
        return view;
    }
    const TensorView copy = reserve(view);
    const std::int64_t bytes = view.elements() * size_of(view.dtype);
    if (is_row_major(view)) {
        copy_in(copy.data, space_, view.data, bytes);
    } else if (bytes > 0) {
        const Workspace gathered(bytes, Space{});
        copy_strided(row_major(gathered.data(), view, Memory::host), view);
        copy_in(copy.data, space_, gathered.data(), bytes);
    }
    return copy;
}

TensorView Staging::output(const TensorView& view)
{
    if (space_.is_host() || view.memory == Memory::device || !view) {
        return view;
    }
    outputs_.push_back({view, reserve(view)});
    return outputs_.back().copy;
}

void Staging::finish()
{
    for (const Output& output : outputs_) {
        const std::int64_t bytes = output.caller.elements() * size_of(output.caller.dtype);
        if (is_row_major(output.caller)) {
            copy_out(output.caller.data, output.copy.data, space_, bytes);
        } else if (bytes > 0) {
            const Workspace gathered(bytes, Space{});
            copy_out(gathered.data(), output.copy.data, space_, bytes);
            wait_for(space_);
            copy_strided(output.caller, row_major(gathered.data(), output.caller, Memory::host));
        }
    }
    if (!outputs_.empty()) {
        wait_for(space_);
    }
}

} // namespace flashomp
