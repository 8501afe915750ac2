// Supports nothing yet.
#include "hopper.hpp"

#include <cuda_runtime_api.h>

namespace flashomp::cuda {

bool hopper_supports(offload::Pass /*pass*/, const offload::Params& /*params*/)
{
    return false;
}

std::int64_t hopper_workspace_bytes(offload::Pass /*pass*/, const offload::Params& /*params*/)
{
    return 0;
}

int run_hopper(offload::Pass /*pass*/, const offload::Params& /*params*/, void* /*workspace*/, void* /*stream*/,
               int /*device*/)
{
    return cudaErrorNotSupported;
}

} // namespace flashomp::cuda
