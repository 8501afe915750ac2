// Tensors that Python passes, as views. Nothing is copied.
#pragma once

#include "dlpack_exchange.hpp"

#include <flashomp/tensor.hpp>

#include <cstdint>
#include <optional>
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

[[nodiscard]] nb::dlpack::dtype dlpack_dtype(DType dtype);

/// The name of the package that an object's type is from: "numpy", "torch", "jaxlib".
[[nodiscard]] std::string package_of(nb::handle object);

/// Text of an object for a message, on one line and not long.
[[nodiscard]] std::string described(nb::handle object);

} // namespace flashomp::python
