// Tensors that Python passes, as views, and the tensors that are made for its results. Nothing is copied.
#pragma once

#include "dlpack_exchange.hpp"

#include <flashomp/tensor.hpp>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

namespace flashomp::python {

/// Order of the axes of q, k, v, o and their gradients with four axes.
enum class Layout : std::uint8_t { bshd, bhsd };

/// What a tensor is for: outputs must be writable, and a tensor that requires a gradient is no input of a function that
/// has none.
enum class Use : std::uint8_t { input, input_without_gradient, output };

/// A tensor of the caller, which lives as long as the caller's arguments do.
class TensorArgument {
public:
    TensorArgument() = default;

    /// None gives a view of rank 0. Throws Error, or TypeError for what is no tensor.
    TensorArgument(const char* name, nb::handle object, Use use);

    /// A dense tensor on the CPU that has a shape and a dtype of NumPy, but no memory yet, as JAX traces it.
    [[nodiscard]] static TensorArgument without_memory(const char* name, nb::handle object);

    [[nodiscard]] explicit operator bool() const { return view_.rank != 0; }
    [[nodiscard]] const TensorView& view() const { return view_; }
    [[nodiscard]] TensorView view(Layout layout) const
    {
        return layout == Layout::bhsd && view_.rank == TensorView::max_rank ? view_.transposed(1, 2) : view_;
    }
    [[nodiscard]] const nb::dlpack::device& device() const { return device_; }
    [[nodiscard]] bool is_cuda() const { return view_.memory == Memory::device; }
    [[nodiscard]] nb::handle object() const { return object_; }
    [[nodiscard]] const char* name() const { return name_; }
    [[nodiscard]] const ExchangeTable* table() const { return table_; }

private:
    void take(const nb::dlpack::dltensor& tensor);
    template <class Array>
    bool import(nb::handle object, std::optional<Array>& keep, std::optional<DType> bits_of);
    void import_through_protocol(Use use);

    const char* name_ = "";
    nb::handle object_;
    TensorView view_;
    nb::dlpack::device device_{dl_cpu, 0};
    const ExchangeTable* table_ = nullptr;
    std::optional<nb::ndarray<>> writable_;
    std::optional<nb::ndarray<nb::ro>> readable_;
};

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

/// Text of an object for a message, on one line and not long.
[[nodiscard]] std::string described(nb::handle object);

} // namespace flashomp::python
