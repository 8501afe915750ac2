// BlockMask as a class of Python.
#pragma once

#include <flashomp/block_mask.hpp>

#include <nanobind/nanobind.h>

namespace nb = nanobind;

namespace flashomp::python {

void bind_block_mask(nb::module_& module);

/// Throws Error for what is no flashomp.BlockMask.
[[nodiscard]] BlockMask read_block_mask(nb::handle value);

} // namespace flashomp::python
