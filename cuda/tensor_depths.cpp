// From a launch to the kernels of its depth and pass.
#include "tensor_depths.hpp"

#include <cuda_runtime_api.h>

namespace flashomp::cuda {

namespace {

using offload::Pass;

template <int depth>
int run_depth(const offload::Params& params, const offload::Launch& launch, void* stream)
{
    switch (launch.pass) {
    case Pass::forward:
        return run_tensor_pass<depth, Pass::forward>(params, launch, stream);
    case Pass::backward_query:
        return run_tensor_pass<depth, Pass::backward_query>(params, launch, stream);
    case Pass::backward_key:
        return run_tensor_pass<depth, Pass::backward_key>(params, launch, stream);
    case Pass::backward_bias:
    case Pass::backward_sink:
        break;
    }
    return cudaErrorInvalidValue;
}

} // namespace

int run_tensor(const offload::Params& params, const offload::Launch& launch, void* stream)
{
    switch (launch.depth) {
    case 64:
        return run_depth<64>(params, launch, stream);
    case 128:
        return run_depth<128>(params, launch, stream);
    case 256:
        return run_depth<256>(params, launch, stream);
    default:
        return cudaErrorInvalidValue;
    }
}

} // namespace flashomp::cuda
