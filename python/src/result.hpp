// The tensors that a call writes: the caller's, new ones of the caller's framework, and scratch memory.
#pragma once

#include "tensor_argument.hpp"

#include <array>
#include <cstdint>
#include <memory>
#include <span>

namespace flashomp::python {

/// Tells PyTorch that a tensor of it was written, so that a graph which saved the old values refuses to go back.
void tell_written(const TensorArgument& tensor);

/// A result: the caller's tensor, or a new one of the framework of `like`. finish() is called when the call has written
/// it.
class Result {
public:
    Result() = default;
    Result(const char* name, nb::handle given, const TensorArgument& like, DType dtype,
           std::span<const std::int64_t> shape);

    /// A new tensor of PyTorch of `shape`, [batch, heads, seqlen, head_dim], in the order of memory of `like`, as the
    /// results of PyTorch's own kernels have: heads may lie within rows.
    [[nodiscard]] static Result in_order_of(const char* name, const TensorArgument& like, DType dtype,
                                            std::array<std::int64_t, TensorView::max_rank> shape);

    [[nodiscard]] TensorView view(Layout layout = Layout::bshd) const
    {
        return is_sequence_major_ ? tensor_.view() : tensor_.view(layout);
    }
    [[nodiscard]] const TensorArgument& tensor() const { return tensor_; }
    [[nodiscard]] nb::object finish();

private:
    void allocate(const char* name, const TensorArgument& like, DType dtype, std::span<const std::int64_t> shape);
    void allocate_in_table(const TensorArgument& like, DType dtype, std::span<const std::int64_t> shape);

    nb::object object_;     ///< in the framework, but for a result that is handed over at the end
    nb::object framework_;  ///< its from_dlpack, where the memory is ours until finish()
    TensorArgument tensor_; ///< of object_
    bool is_sequence_major_ = false;
    bool is_given_ = false; ///< by the caller
};

/// Memory for a result that nobody asked for.
class Scratch {
public:
    Scratch(const TensorArgument& like, std::span<const std::int64_t> shape);
    [[nodiscard]] TensorView view() const { return view_; }

private:
    std::unique_ptr<float[]> host_;
    Result device_;
    TensorView view_;
};

} // namespace flashomp::python
