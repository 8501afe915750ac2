// The part that both file formats share: a tensor's elements as a run of little-endian, row-major bytes.
#pragma once

#include "atomic_file.hpp"
#include "host_tensor.hpp"
#include "input_file.hpp"

#include "flashomp/tensor.hpp"

#include <filesystem>

namespace flashomp::io {

/// Reads the elements of `tensor`. Throws Error when a boolean is a byte other than 0 and 1.
void read_elements(InputFile& file, HostTensor& tensor);

/// Throws Error unless `view` can be written to a file: on the host, rank 0 to 4, a pointer where there are elements
/// (and always at rank 0), and a shape that memory could hold.
void check_writable(const std::filesystem::path& path, const ConstTensorView& view);

/// Writes the elements of a checked view of any strides. Throws Error when a boolean is a byte other than 0 and 1.
void write_elements(StagedFile& file, const ConstTensorView& view);

/// The shape of a checked view.
[[nodiscard]] Shape shape_of(const ConstTensorView& view);

} // namespace flashomp::io
