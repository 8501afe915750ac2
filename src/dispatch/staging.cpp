#include "staging.hpp"

#include "problem_tensors.hpp"
#include "row_major.hpp"
#include "workspace.hpp"

#include <algorithm>
#include <cstring>
#include <span>
#include <stdexcept>

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

bool is_copied(const ConstTensorView& view, const Space& space)
{
    return view && !space.is_host() && view.memory == Memory::host;
}

std::int64_t bytes_of(const ConstTensorView& view)
{
    return view.elements() * size_of(view.dtype);
}

} // namespace

void StagingBytes::add(const ConstTensorView& view, const Space& space)
{
    if (is_copied(view, space)) {
        tensors += bytes_of(view);
        memory += in_workspace(bytes_of(view));
        gathered = std::max(gathered, is_row_major(view) ? 0 : bytes_of(view));
    }
}

StagingBytes staging_bytes(const Problem& problem, const Space& space)
{
    StagingBytes bytes;
    each_tensor(problem, [&](const char* /*name*/, const ConstTensorView& view) { bytes.add(view, space); });
    return bytes;
}

TensorView Staging::reserve(const ConstTensorView& view)
{
    const std::int64_t bytes = in_workspace(bytes_of(view));
    if (bytes > left_) {
        throw std::logic_error("a tensor is staged that no memory was planned for");
    }
    const TensorView copy = row_major(memory_, view, Memory::device);
    memory_ += bytes;
    left_ -= bytes;
    return copy;
}

ConstTensorView Staging::input(const ConstTensorView& view)
{
    if (!is_copied(view, space_)) {
        return view;
    }
    const TensorView copy = reserve(view);
    if (is_row_major(view)) {
        copy_in(copy.data, space_, view.data, bytes_of(view));
    } else if (bytes_of(view) > 0) {
        copy_strided(row_major(gathered_, view, Memory::host), view);
        copy_in(copy.data, space_, gathered_, bytes_of(view));
    }
    return copy;
}

TensorView Staging::output(const TensorView& view)
{
    if (!is_copied(view, space_)) {
        return view;
    }
    Output& output = outputs_.at(output_count_++);
    output = {view, reserve(view)};
    return output.copy;
}

void Staging::finish()
{
    for (const Output& output : std::span(outputs_).first(output_count_)) {
        const std::int64_t bytes = bytes_of(output.caller);
        if (is_row_major(output.caller)) {
            copy_out(output.caller.data, output.copy.data, space_, bytes);
        } else if (bytes > 0) {
            copy_out(gathered_, output.copy.data, space_, bytes);
            wait_for(space_);
            copy_strided(output.caller, row_major(gathered_, output.caller, Memory::host));
        }
    }
    if (output_count_ > 0) {
        wait_for(space_);
    }
}

} // namespace flashomp
