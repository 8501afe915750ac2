// Tensors as float8_e4m3 or int8, each head with a scale of its own.
#pragma once

#include "host_tensor.hpp"

namespace flashomp::io {

/// An element stands for scale[batch, head] times itself.
struct Quantized {
    HostTensor elements; ///< in the shape of what it is of
    HostTensor scale;    ///< float32 [batch, heads]
};

/// `tensor` is floating-point with four axes, batch first, heads at `heads_axis` (1 or 2). The largest magnitude of
/// each head becomes `to`'s largest number, 448 or 127. Throws Error for other types and ranks.
[[nodiscard]] Quantized quantized(const HostTensor& tensor, int heads_axis, DType to = DType::float8_e4m3);

} // namespace flashomp::io
