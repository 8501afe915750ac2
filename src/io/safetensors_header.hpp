// The header of a safetensors file: its length and a JSON object that says what lies where.
// Source: the format section of https://github.com/huggingface/safetensors (README.md).
#pragma once

#include "host_tensor.hpp"
#include "input_file.hpp"

#include "flashomp/tensor.hpp"

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace flashomp::io {

/// The free-form strings of a file's "__metadata__".
using Metadata = std::map<std::string, std::string>;

/// One tensor of a file.
struct SafetensorsEntry {
    std::string name;
    DType dtype = DType::float32;
    Shape shape;
    std::int64_t begin = 0; ///< of its bytes, counted from the first byte after the header
    std::int64_t end = 0;
};

/// What a header says. The entries are in the order of their bytes, which they cover without a gap or an overlap.
struct SafetensorsHeader {
    std::vector<SafetensorsEntry> entries;
    Metadata metadata;
};

/// Reads and checks a header, and leaves `file` at the first tensor's bytes. Throws Error unless
/// - its length is within the file and at most 100'000'000 bytes (the reference implementation's limit), and it is one
///   JSON object, from a "{" to padding spaces, in which no object has a key twice;
/// - every tensor has a known dtype (F16, BF16, F32, F64, I32, I64, BOOL), a shape of rank 0 to 4, offsets whose
///   difference is exactly the bytes of that shape, and begins at a multiple of its element size;
/// - together the tensors cover the rest of the file exactly: no overlap, no gap, nothing after the last.
[[nodiscard]] SafetensorsHeader read_safetensors_header(InputFile& file);

/// The whole header, length included, padded with spaces to a multiple of 8 bytes. Throws Error, naming `path`, when a
/// name or a metadata string is not UTF-8 or a tensor is called "__metadata__".
[[nodiscard]] std::string safetensors_header_text(const SafetensorsHeader& header, const std::filesystem::path& path);

} // namespace flashomp::io
