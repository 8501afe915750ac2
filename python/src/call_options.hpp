// The keywords of a call as Options.
#pragma once

#include "tensor_argument.hpp"

#include <flashomp/options.hpp>

#include <string_view>
#include <vector>

namespace flashomp::python {

/// Options, the tensors that they view, and what only Python has.
struct CallOptions {
    Options options;
    Layout layout = Layout::bshd;
    std::vector<TensorArgument> tensors; ///< of options, kept until the call is over
    bool has_cuda_backend;               ///< whether this build can run calls on CUDA tensors

    /// Keywords with None for a value count as not given. Throws Error for a name that is no option.
    CallOptions(const nb::dict& keywords, Use use);
};

/// All tensors must be in one place, but cu_seqlens and the tables of a cache, which the host reads. For CUDA tensors
/// the call gets the device and, unless `stream` was given, the stream that is current in the framework of q. Throws
/// Error.
void place(CallOptions& call, std::span<const TensorArgument* const> tensors);

/// The member of an option that is a tensor, or null where none has this name.
[[nodiscard]] ConstTensorView Options::*tensor_option(std::string_view name);

[[nodiscard]] Backend read_backend(nb::handle value);
[[nodiscard]] DType read_dtype(nb::handle value);

} // namespace flashomp::python
