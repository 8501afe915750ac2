// Tensors of the C interface as views.
#pragma once

#include "flashomp/flashomp.h"
#include "flashomp/tensor.hpp"

namespace flashomp::capi {

/// Throws Error where no DType has the code, bits and lanes. `name` is the tensor's.
[[nodiscard]] DType dtype_of(const char* name, const flashomp_dtype& given);

/// Makes the views of one call, and holds its tensors to one GPU.
class Views {
public:
    /// `managed_is_gpus`: managed memory is used as a GPU's, not as the host's.
    explicit Views(bool managed_is_gpus) : managed_is_gpus_(managed_is_gpus) {}

    /// A view of rank 0 for a null pointer. Throws Error where the tensor is none: what follows of its shape, strides
    /// and address is judged with the call.
    [[nodiscard]] TensorView operator()(const char* name, const flashomp_tensor* given);

    /// The tensor that is on a GPU and was named first; null where there is none.
    [[nodiscard]] const char* name_on_gpu() const { return name_on_gpu_; }
    /// The GPU's number.
    [[nodiscard]] int gpu() const { return gpu_; }

private:
    Memory memory_of(const char* name, const flashomp_device& device);

    bool managed_is_gpus_;
    const char* name_on_gpu_ = nullptr;
    int gpu_ = 0;
};

} // namespace flashomp::capi
