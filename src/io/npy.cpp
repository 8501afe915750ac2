#include "npy.hpp"

#include "elements.hpp"
#include "input_file.hpp"
#include "message.hpp"
#include "npy_header.hpp"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

namespace flashomp::io {

namespace {

struct TypeName {
    std::string_view descr;
    DType dtype;
};

constexpr std::array type_names{
    TypeName{"<f2", DType::float16}, TypeName{"<u2", DType::bfloat16}, TypeName{"<f4", DType::float32},
    TypeName{"<f8", DType::float64}, TypeName{"<i4", DType::int32},    TypeName{"<i8", DType::int64},
    TypeName{"|b1", DType::boolean}, TypeName{"|i1", DType::int8},
};

DType dtype_of(const std::string& descr, NpyOptions options, const std::filesystem::path& path)
{
    const auto* const found =
        std::find_if(type_names.begin(), type_names.end(), [&](const TypeName& name) { return name.descr == descr; });
    if (descr.starts_with('>')) {
        fail(path, "holds the big-endian type {}; only little-endian types are allowed.", in_quotes(descr));
    }
    if (found == type_names.end()) {
        fail(path, "holds the type {}; <f2, <f4, <f8, <i4, <i8, |i1, |b1 and, for bfloat16, <u2 are allowed.",
             in_quotes(descr));
    }
    if (found->dtype == DType::bfloat16 && !options.u2_is_bfloat16) {
        fail(path, "holds unsigned 16-bit integers (<u2), which are only allowed where they are said to be bfloat16.");
    }
    return found->dtype;
}

/// `view` with its axes in the opposite order.
ConstTensorView reversed(ConstTensorView view)
{
    std::reverse(view.shape.begin(), view.shape.begin() + view.rank);
    std::reverse(view.strides.begin(), view.strides.begin() + view.rank);
    return view;
}

} // namespace

HostTensor read_npy(const std::filesystem::path& path, NpyOptions options)
{
    InputFile file(path);
    NpyHeader header = read_npy_header(file);
    const DType dtype = dtype_of(header.descr, options, path);
    if (header.shape.size() > ConstTensorView::max_rank) {
        fail(path, "holds an array of {} axes; at most {} are allowed.", header.shape.size(),
             ConstTensorView::max_rank);
    }
    const auto needed = checked_bytes(dtype, header.shape);
    if (!needed) {
        fail(path,
             "has a header ({}) whose extents ask for more than 2^63 - 1 bytes, zeros apart; no such array is read.",
             describe(dtype, header.shape));
    }
    if (file.remaining() != *needed) {
        fail(path, "holds {} bytes of data but its header ({}) needs {}; the file must match its header exactly.",
             file.remaining(), describe(dtype, header.shape), *needed);
    }
    if (header.fortran_order) { // column-major data is the row-major data of the array with its axes reversed
        std::reverse(header.shape.begin(), header.shape.end());
    }
    HostTensor tensor(dtype, std::move(header.shape), Fill::nothing);
    read_elements(file, tensor);
    if (header.fortran_order) {
        return HostTensor::copy_of(reversed(std::as_const(tensor).view()));
    }
    return tensor;
}

void write_npy(StagedFile& file, const ConstTensorView& view)
{
    check_writable(file.path(), view);
    const auto* const name = std::find_if(type_names.begin(), type_names.end(),
                                          [&](const TypeName& each) { return each.dtype == view.dtype; });
    if (name == type_names.end()) {
        throw Error(fmt::format("{}: NumPy has no type for {}; .safetensors files hold it.", file.path().string(),
                                name_of(view.dtype)));
    }
    const std::string header = npy_header_text(name->descr, shape_of(view));
    file.write(header.data(), static_cast<std::int64_t>(header.size()));
    write_elements(file, view);
}

void write_npy(const std::filesystem::path& path, const ConstTensorView& view)
{
    StagedFile file(path);
    write_npy(file, view);
    file.publish();
}

} // namespace flashomp::io
