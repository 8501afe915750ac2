// The header of a NumPy .npy file: magic string, version, length and a Python dictionary literal.
// Source: NEP 1, "A Simple File Format for NumPy Arrays", and numpy.lib.format for versions 2.0 and 3.0.
#pragma once

#include "host_tensor.hpp"
#include "input_file.hpp"

#include <filesystem>
#include <string>
#include <string_view>

namespace flashomp::io {

/// What the dictionary says.
struct NpyHeader {
    std::string descr;          ///< the element type as NumPy spells it, for example "<f4"
    bool fortran_order = false; ///< the first axis varies fastest in the data
    Shape shape;                ///< of any rank; no extent is negative

    bool operator==(const NpyHeader&) const = default;
};

/// Parses a dictionary literal such as "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 64), }", followed by
/// padding spaces and one newline. It is a parser of exactly this: the keys descr (a string without escapes),
/// fortran_order (True or False) and shape (a tuple of decimal integers), each once, in any order, and no others.
/// Throws Error naming `path`, what stands where, and what is allowed there.
[[nodiscard]] NpyHeader parse_npy_header(std::string_view text, const std::filesystem::path& path);

/// Reads magic string, version (1.0, 2.0 or 3.0), length and dictionary, and leaves `file` at the first element.
/// Throws Error as parse_npy_header() does, and when any of the former is wrong or the file is too short for it.
[[nodiscard]] NpyHeader read_npy_header(InputFile& file);

/// The whole header for C order: version 1.0, padded with spaces so that the data begins at a multiple of 64 bytes.
[[nodiscard]] std::string npy_header_text(std::string_view descr, const Shape& shape);

} // namespace flashomp::io
