// The one entry of libflashomp_hopper.
#include "tensor_shapes.hpp"

namespace flashomp::offload {

extern "C" __attribute__((visibility("default"))) Ran flashomp_run_hopper(const Params& params, const Launch& launch)
{
    return launch.depth == 64 ? run_tensor_depth<64>(params, launch) : run_tensor_depth<128>(params, launch);
}

} // namespace flashomp::offload
