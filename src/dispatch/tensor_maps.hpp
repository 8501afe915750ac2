// The maps by which Hopper's copy engine knows the tensors that a pass streams (CUDA driver API,
// cuTensorMapEncodeTiled).
#pragma once

#include "algorithm/params.hpp"
#include "plan.hpp"
#include "problem.hpp"

#include <array>
#include <cstdint>
#include <vector>

namespace flashomp {

/// CUtensorMap of cuda.h.
struct alignas(64) TensorMap {
    std::array<std::uint64_t, 16> opaque{};
};

struct MapOfTensor {
    offload::Tensor offload::Params::*tensor;
    TensorMap map;
};

/// Those that a pass can have: none unless the Hopper machine runs it, and none of a tensor that it must copy by
/// itself, for want of the driver's function or because the tensor's strides are not whole 16 bytes.
std::vector<MapOfTensor> maps_of(const PassPlan& pass, const Problem& problem, const offload::Params& params);

} // namespace flashomp
