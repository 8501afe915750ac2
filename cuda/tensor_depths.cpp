// From a launch to the kernels of its operands, depth and pass.
#include "tensor_depths.hpp"

#include "algorithm/pair_mask.hpp"

#include <cuda_runtime_api.h>

namespace flashomp::cuda {

namespace {

using offload::Pass;

template <Operands operands, int depth>
int run_depth(const offload::Params& params, const offload::Launch& launch, void* stream)
{
    switch (launch.pass) {
    case Pass::forward:
        return run_tensor_pass<operands, depth, Pass::forward>(params, launch, stream);
    case Pass::backward_query:
        return run_tensor_pass<operands, depth, Pass::backward_query>(params, launch, stream);
    case Pass::backward_key:
        return run_tensor_pass<operands, depth, Pass::backward_key>(params, launch, stream);
    case Pass::backward_bias:
    case Pass::backward_sink:
    case Pass::backward_start:
    case Pass::backward_once:
    case Pass::backward_end:
        break;
    }
    return cudaErrorInvalidValue;
}

template <Operands operands>
int run_operands(const offload::Params& params, const offload::Launch& launch, void* stream)
{
    switch (launch.depth) {
    case 64:
        return run_depth<operands, 64>(params, launch, stream);
    case 128:
        return run_depth<operands, 128>(params, launch, stream);
    case 256:
        return run_depth<operands, 256>(params, launch, stream);
    case 576:
        if constexpr (operands == Operands::bits16) { // forward alone
            return run_tensor_pass<operands, 576, Pass::forward>(params, launch, stream);
        }
        return cudaErrorInvalidValue;
    default:
        return cudaErrorInvalidValue;
    }
}

template <int depth>
int run_masked_depth(const offload::Params& params, const offload::Launch& launch, void* stream)
{
    if (const int status = fill_tiles(params, launch, stream); status != cudaSuccess) {
        return status;
    }
    switch (launch.pass) {
    case Pass::forward:
        return run_masked_tensor_pass<depth, Pass::forward>(params, launch, stream);
    case Pass::backward_query:
        return run_masked_tensor_pass<depth, Pass::backward_query>(params, launch, stream);
    case Pass::backward_key:
        return run_masked_tensor_pass<depth, Pass::backward_key>(params, launch, stream);
    default:
        return cudaErrorInvalidValue;
    }
}

} // namespace

int run_tensor(const offload::Params& params, const offload::Launch& launch, void* stream)
{
    if (offload::has_mask(params.mask)) {
        return launch.depth == 64 ? run_masked_depth<64>(params, launch, stream)
                                  : run_masked_depth<128>(params, launch, stream);
    }
    return offload::operands_of(params.element) == Operands::tf32
               ? run_operands<Operands::tf32>(params, launch, stream)
               : run_operands<Operands::bits16>(params, launch, stream);
}

} // namespace flashomp::cuda
