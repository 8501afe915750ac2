#include "elements.hpp"

#include "message.hpp"

#include <algorithm>
#include <bit>
#include <cstdint>

namespace flashomp::io {

static_assert(std::endian::native == std::endian::little, "elements are read and written as they lie in memory");

namespace {

void check_booleans(const std::filesystem::path& path, const void* data, std::int64_t count)
{
    const auto* const begin = static_cast<const std::uint8_t*>(data);
    const auto* const found = std::find_if(begin, begin + count, [](std::uint8_t byte) { return byte > 1; });
    if (found != begin + count) {
        fail(path, "holds the byte {} as boolean element {}; only 0 and 1 are allowed.", *found, found - begin);
    }
}

bool is_contiguous(const ConstTensorView& view)
{
    std::int64_t stride = 1;
    for (int axis = view.rank - 1; axis >= 0; --axis) {
        const auto index = static_cast<std::size_t>(axis);
        if (view.shape.at(index) != 1 && view.strides.at(index) != stride) {
            return false;
        }
        stride *= view.shape.at(index);
    }
    return true;
}

} // namespace

void read_elements(InputFile& file, HostTensor& tensor)
{
    file.read(tensor.data(), tensor.bytes());
    if (tensor.dtype() == DType::boolean) {
        check_booleans(file.path(), tensor.data(), tensor.elements());
    }
}

Shape shape_of(const ConstTensorView& view)
{
    return {view.shape.begin(), view.shape.begin() + view.rank};
}

void check_writable(const std::filesystem::path& path, const ConstTensorView& view)
{
    if (view.rank < 0 || view.rank > ConstTensorView::max_rank) {
        fail(path, "the tensor to write has {} axes; 0 to {} are allowed.", view.rank, ConstTensorView::max_rank);
    }
    const Shape shape = shape_of(view);
    const auto bytes = checked_bytes(view.dtype, shape);
    if (!bytes) {
        fail(path, "the tensor to write is {}; extents must not be negative and the size must fit in 63 bits.",
             describe(view.dtype, shape));
    }
    if (view.memory != Memory::host) {
        fail(path, "the tensor to write lies in device memory; only host memory is allowed.");
    }
    if (view.data == nullptr && (*bytes > 0 || view.rank == 0)) {
        fail(path, "the tensor to write ({}) has no data; a pointer to its elements is needed.",
             describe(view.dtype, shape));
    }
}

void write_elements(StagedFile& file, const ConstTensorView& view)
{
    if (!is_contiguous(view)) {
        const HostTensor copy = HostTensor::copy_of(view);
        write_elements(file, copy.view());
        return;
    }
    const std::int64_t bytes = checked_bytes(view.dtype, shape_of(view)).value();
    if (view.dtype == DType::boolean) {
        check_booleans(file.path(), view.data, bytes);
    }
    file.write(view.data, bytes);
}

} // namespace flashomp::io
