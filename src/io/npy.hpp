// NumPy .npy files, read strictly and written as NumPy writes them.
// Source: NEP 1, "A Simple File Format for NumPy Arrays", and numpy.lib.format for versions 2.0 and 3.0.
#pragma once

#include "atomic_file.hpp"
#include "host_tensor.hpp"

#include "flashomp/tensor.hpp"

#include <filesystem>

namespace flashomp::io {

struct NpyOptions {
    /// NumPy has no bfloat16. true takes an unsigned 16-bit file (<u2) to hold the bits of bfloat16 numbers, which is
    /// how write_npy() writes them; false refuses such a file.
    bool u2_is_bfloat16 = false;
};

/// Reads an array of rank 0 to 4 of <f2, <f4, <f8, <i4, <i8, |b1 or, when the options say so, <u2; versions 1.0, 2.0
/// and 3.0; C or Fortran order (the result is always row-major).
///
/// Throws Error, before memory for the elements is taken, when the file does not exist, is anything else than such an
/// array, or holds one byte less or more than its header says.
[[nodiscard]] HostTensor read_npy(const std::filesystem::path& path, NpyOptions options = {});

/// Writes a host view of any strides, rank 0 to 4, as version 1.0 in C order; bfloat16 as <u2.
///
/// The file appears whole or not at all. Throws Error when the view is not on the host or has no data, or when the
/// file cannot be written; a file of that name is then unchanged.
void write_npy(const std::filesystem::path& path, const ConstTensorView& view);

/// The same into a staged file, for an OutputSet.
void write_npy(StagedFile& file, const ConstTensorView& view);

} // namespace flashomp::io
