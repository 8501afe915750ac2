// The maps by which Hopper's copy engine knows the tensors that a pass streams.
#pragma once

#include "algorithm/params.hpp"
#include "launch/tensor_map.hpp"
#include "plan.hpp"
#include "problem.hpp"

#include <array>

namespace flashomp {

using offload::TensorMap;

struct MapOfTensor {
    offload::Tensor offload::Params::*tensor = nullptr; ///< null: no map
    TensorMap map;
};

/// A pass streams two tensors.
using TensorMaps = std::array<MapOfTensor, 2>;

/// Those that a pass can have: none unless the Hopper machine runs it, and none of a tensor that it must copy by
/// itself, for want of the driver's function or because the tensor's strides are not whole 16 bytes.
TensorMaps maps_of(const PassPlan& pass, const Problem& problem, const offload::Params& params);

} // namespace flashomp
