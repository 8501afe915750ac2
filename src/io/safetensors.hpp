// safetensors files, read strictly.
// Source: the format section of https://github.com/huggingface/safetensors (README.md).
#pragma once

#include "atomic_file.hpp"
#include "host_tensor.hpp"
#include "safetensors_header.hpp"

#include "flashomp/tensor.hpp"

#include <filesystem>
#include <map>
#include <string>

namespace flashomp::io {

/// Reads every tensor (F16, BF16, F32, F64, I32, I64, BOOL; rank 0 to 4; row-major), and the file's metadata strings
/// when `metadata` is given.
///
/// Throws Error, before memory for any tensor is taken, when the file does not exist or breaks any of the rules that
/// read_safetensors_header() lists.
[[nodiscard]] std::map<std::string, HostTensor> read_safetensors(const std::filesystem::path& path,
                                                                 Metadata* metadata = nullptr);

/// Writes host views of any strides, rank 0 to 4, wide element types first and then by name, as the reference
/// implementation does, so that every tensor is aligned to its element size.
///
/// The file appears whole or not at all. Throws Error when a view is not on the host or has no data, when a name or a
/// metadata string is not UTF-8, or when the file cannot be written; a file of that name is then unchanged.
void write_safetensors(const std::filesystem::path& path, const std::map<std::string, ConstTensorView>& tensors,
                       const Metadata& metadata = {});

/// The same into a staged file, for an OutputSet.
void write_safetensors(StagedFile& file, const std::map<std::string, ConstTensorView>& tensors,
                       const Metadata& metadata = {});

} // namespace flashomp::io
