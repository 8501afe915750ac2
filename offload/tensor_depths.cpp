// From a launch to the kernels of its depth, where the build has them.
#include "tensor_shapes.hpp"

namespace flashomp::offload {

bool has_tensor_machine()
{
    return FLASHOMP_HAS_TENSOR != 0;
}

Ran run_tensor([[maybe_unused]] const Params& params, [[maybe_unused]] const Launch& launch)
{
#if FLASHOMP_HAS_TENSOR
    switch (launch.depth) {
    case 64:
        return run_tensor_depth<64>(params, launch);
    case 128:
        return run_tensor_depth<128>(params, launch);
    case 256:
        return run_tensor_depth<256>(params, launch);
    default:
        break;
    }
#endif
    return {};
}

} // namespace flashomp::offload
