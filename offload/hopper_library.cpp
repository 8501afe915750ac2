// The second library, libflashomp_hopper: the same passes for sm_90a. A GPU program loads whole or not at all, so what
// only Hopper understands is in a program of its own, opened where there is such a GPU.
#include "launch.hpp"

#include <dlfcn.h>
#include <string>

namespace flashomp::offload {

namespace {

using RunPass = Ran (*)(const Params&, const Launch&);

/// Null where the library is not beside this one.
RunPass load()
{
#if FLASHOMP_HAS_HOPPER
    Dl_info here{};
    if (dladdr(reinterpret_cast<const void*>(&run_hopper), &here) != 0) {
        const std::string path = here.dli_fname;
        const std::string folder = path.substr(0, path.find_last_of('/') + 1);
        if (void* library = dlopen((folder + FLASHOMP_HOPPER_FILE).c_str(), RTLD_NOW | RTLD_LOCAL)) {
            return reinterpret_cast<RunPass>(dlsym(library, "flashomp_run_hopper")); // stays open
        }
    }
#endif
    return nullptr;
}

RunPass loaded()
{
    static const RunPass run = load();
    return run;
}

} // namespace

bool load_hopper_machine()
{
    return loaded() != nullptr;
}

Ran run_hopper(const Params& params, const Launch& launch)
{
    const RunPass run = loaded();
    return run != nullptr ? run(params, launch) : Ran{};
}

} // namespace flashomp::offload
