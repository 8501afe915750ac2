#include "staging.hpp"

#include "flashomp/error.hpp"

#include <cstring>
#include <fmt/format.h>
#include <omp.h>

namespace flashomp {

namespace {

/// The row-major view of the same shape.
TensorView packed(void* data, const ConstTensorView& like, Memory memory)
{
    TensorView view;
    view.data = data;
    view.dtype = like.dtype;
    view.memory = memory;
    view.rank = like.rank;
    view.shape = like.shape;
    std::int64_t stride = 1;
    for (int axis = like.rank - 1; axis >= 0; --axis) {
        view.strides.at(static_cast<std::size_t>(axis)) = stride;
        stride *= like.shape.at(static_cast<std::size_t>(axis));
    }
    return view;
}

bool is_packed(const ConstTensorView& view)
{
    const TensorView ideal = packed(nullptr, view, view.memory);
    for (int axis = 0; axis < view.rank; ++axis) {
        const auto a = static_cast<std::size_t>(axis);
        if (view.shape.at(a) > 1 && view.strides.at(a) != ideal.strides.at(a)) {
            return false;
        }
    }
    return true;
}

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

void copy_bytes(void* target, int target_device, const void* source, int source_device, std::int64_t bytes)
{
    if (bytes > 0 &&
        omp_target_memcpy(target, source, static_cast<std::size_t>(bytes), 0, 0, target_device, source_device) != 0) {
        throw Error(fmt::format("copying {} bytes between the host and the device failed.", bytes));
    }
}

} // namespace

TensorView Staging::reserve(const ConstTensorView& view)
{
    const std::int64_t bytes = view.elements() * size_of(view.dtype);
    copies_.emplace_back(bytes, device_);
    bytes_ += bytes;
    return packed(copies_.back().data(), view, Memory::device);
}

const void* Staging::bytes(const void* data, std::int64_t size)
{
    if (size == 0 || device_ < 0) {
        return size == 0 ? nullptr : data;
    }
    copies_.emplace_back(size, device_);
    bytes_ += size;
    copy_bytes(copies_.back().data(), device_, data, omp_get_initial_device(), size);
    return copies_.back().data();
}

ConstTensorView Staging::input(const ConstTensorView& view)
{
    if (device_ < 0 || view.memory == Memory::device || !view) {
        return view;
    }
    const TensorView copy = reserve(view);
    const std::int64_t bytes = view.elements() * size_of(view.dtype);
    if (is_packed(view)) {
        copy_bytes(copy.data, device_, view.data, omp_get_initial_device(), bytes);
    } else if (bytes > 0) {
        const Workspace gathered(bytes, -1);
        copy_strided(packed(gathered.data(), view, Memory::host), view);
        copy_bytes(copy.data, device_, gathered.data(), omp_get_initial_device(), bytes);
    }
    return copy;
}

TensorView Staging::output(const TensorView& view)
{
    if (device_ < 0 || view.memory == Memory::device || !view) {
        return view;
    }
    outputs_.push_back({view, reserve(view)});
    return outputs_.back().copy;
}

void Staging::finish()
{
    for (const Output& output : outputs_) {
        const std::int64_t bytes = output.caller.elements() * size_of(output.caller.dtype);
        if (is_packed(output.caller)) {
            copy_bytes(output.caller.data, omp_get_initial_device(), output.copy.data, device_, bytes);
        } else if (bytes > 0) {
            const Workspace gathered(bytes, -1);
            copy_bytes(gathered.data(), omp_get_initial_device(), output.copy.data, device_, bytes);
            copy_strided(output.caller, packed(gathered.data(), output.caller, Memory::host));
        }
    }
}

} // namespace flashomp
