#include "device_policy.hpp"

#include "cuda/kernels.hpp"

#include "flashomp/version.hpp"

#include <cstdlib>
#include <string_view>
#include <strings.h>

namespace flashomp {

bool device_is_demanded()
{
    // OpenMP 5 has no call that tells. Its run time reads the variable in any case of letters, too.
    const char* const policy = std::getenv("OMP_TARGET_OFFLOAD"); // NOLINT(concurrency-mt-unsafe)
    return policy != nullptr && strcasecmp(policy, "MANDATORY") == 0;
}

const char* why_no_device()
{
    return std::string_view(build_info().offload) == "none" && !cuda::is_built() ? "this build has no GPU code"
                                                                                 : "no GPU was found";
}

} // namespace flashomp
