#pragma once

#include "flashomp/options.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace flashomp {

/// A GPU that a backend of this build can use.
struct DeviceInfo {
    int index = 0;                 ///< number in the backend, as in `--device 0`
    std::string name;              ///< for example "NVIDIA H200"
    std::string capability;        ///< compute capability, for example "9.0"; empty when unknown
    int multiprocessors = 0;       ///< 0 when unknown
    std::string driver;            ///< driver API version, for example "13.0"; empty when unknown
    std::int64_t l2_bytes = 0;     ///< L2 cache; 0 when unknown
    std::int64_t shared_bytes = 0; ///< shared memory of a multiprocessor; 0 when unknown
    /// Whether calls on the device take memory of cudaMalloc, PyTorch and their like, and CUDA's streams (tensor.hpp).
    bool shares_cuda_memory = true;
};

/// The GPUs that the backend finds, in device order; empty on a machine without one or in a build without code for it.
/// `automatic` stands for the backend that would run a call that leaves the choice: cuda where it is built and finds a
/// GPU, else openmp.
[[nodiscard]] std::vector<DeviceInfo> devices(Backend backend = Backend::automatic);

/// The best instruction set that the host tile machine has for this CPU: "baseline", "avx2", "avx512", "avx512_bf16" or
/// "amx". The environment variable FLASHOMP_HOST_ISA forces a lower one.
[[nodiscard]] std::string host_isa();

/// The same for tensors of one type: "avx512_bf16" has nothing for others than bfloat16, which run on "avx512". The
/// backward pass of float32 runs there too where the best is "amx", unless FLASHOMP_HOST_ISA names that (docs/host.md).
[[nodiscard]] std::string host_isa(DType dtype);

} // namespace flashomp
