// The CUDA stream in whose order a call's new tensors are.
#pragma once

#include "tensor_argument.hpp"

#include <optional>

namespace flashomp::python {

/// Makes the stream of a call PyTorch's current one for as long as the call makes tensors. PyTorch's allocator gives
/// memory in the order of the current stream: a block that another stream is done with may still be in use on the
/// call's, and one that the call has given back may be written by the other stream before the call's kernels are done.
/// record_stream() would mend the second only.
class StreamScope {
public:
    /// Does nothing off CUDA and where `stream` is the current one.
    StreamScope(const TensorArgument& like, std::optional<void*> stream);
    ~StreamScope();
    StreamScope(const StreamScope&) = delete;
    StreamScope& operator=(const StreamScope&) = delete;
    StreamScope(StreamScope&&) = delete;
    StreamScope& operator=(StreamScope&&) = delete;

private:
    nb::object context_; ///< of Python, entered
};

} // namespace flashomp::python
