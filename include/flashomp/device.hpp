#pragma once

#include "flashomp/tensor.hpp"

#include <string>
#include <vector>

namespace flashomp {

/// A GPU that OpenMP offloading can reach from this build.
struct DeviceInfo {
    int index = 0;           ///< OpenMP device number, as in `--device 0`
    std::string name;        ///< for example "NVIDIA H200"
    std::string capability;  ///< compute capability, for example "9.0"; empty when unknown
    int multiprocessors = 0; ///< 0 when unknown
    std::string driver;      ///< driver API version, for example "13.0"; empty when unknown
};

/// The GPUs found, in device order; empty on a machine without one or in a build without offloading.
[[nodiscard]] std::vector<DeviceInfo> devices();

/// The best instruction set that the host tile machine has for this CPU: "baseline", "avx2", "avx512", "avx512_bf16" or
/// "amx". The environment variable FLASHOMP_HOST_ISA forces a lower one.
[[nodiscard]] std::string host_isa();

/// The same for tensors of one type: "avx512_bf16" has nothing for others than bfloat16, which run on "avx512".
[[nodiscard]] std::string host_isa(DType dtype);

} // namespace flashomp
