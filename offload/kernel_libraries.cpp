// Kernels in libraries of their own, beside this one and opened when they are first needed. A GPU program loads whole
// or not at all, and the driver compiles all of it: what only Hopper understands must be apart, and what only some
// calls need is not for others to wait for.
#include "tensor_shapes.hpp"

#include <dlfcn.h>
#include <string>

namespace flashomp::offload {

namespace {

using RunPass = Ran (*)(const Call&, Call*);

/// A library in the folder of the one that this code is in.
std::string path_of(const std::string& name)
{
    Dl_info here{};
    if (dladdr(reinterpret_cast<const void*>(&run_hopper), &here) == 0) {
        return {};
    }
    const std::string path = here.dli_fname;
    return path.substr(0, path.find_last_of('/') + 1) + "libflashomp_" + name + ".so." FLASHOMP_VERSION_MAJOR;
}

/// Null where there is none. It stays open.
RunPass open(const std::string& name)
{
    void* library = dlopen(path_of(name).c_str(), RTLD_NOW | RTLD_LOCAL);
    return library != nullptr ? reinterpret_cast<RunPass>(dlsym(library, "flashomp_run")) : nullptr;
}

RunPass hopper()
{
    static const RunPass run = FLASHOMP_HAS_HOPPER != 0 ? open("hopper") : nullptr;
    return run;
}

RunPass hopper_wide()
{
    static const RunPass run = FLASHOMP_HAS_HOPPER != 0 ? open("hopper_wide") : nullptr;
    return run;
}

RunPass float32()
{
    static const RunPass run = has_gpu_code() ? open("float32") : nullptr;
    return run;
}

RunPass wide()
{
    static const RunPass run = has_gpu_code() ? open("wide") : nullptr;
    return run;
}

Ran run_with(RunPass run, const Call& call, Call* there)
{
    return run != nullptr ? run(call, there) : Ran{};
}

} // namespace

bool has_gpu_code()
{
    return FLASHOMP_HAS_TENSOR != 0;
}

bool has_tensor_machine(Element element, int depth)
{
    if (operands_of(element) == Operands::tf32) {
        return float32() != nullptr;
    }
    return depth > 128 ? wide() != nullptr : has_gpu_code();
}

Ran run_tensor(const Call& call, Call* there)
{
    if (operands_of(call.params.element) == Operands::tf32) {
        return run_with(float32(), call, there);
    }
    if (call.launch.depth > 128) {
        return run_with(wide(), call, there);
    }
#if FLASHOMP_HAS_TENSOR
    return call.launch.depth == 64 ? run_tensor_depth<Operands::bits16, 64>(call, there)
                                   : run_tensor_depth<Operands::bits16, 128>(call, there);
#else
    return {};
#endif
}

bool load_hopper_machine()
{
    return hopper() != nullptr;
}

bool has_hopper_machine(int depth)
{
    return depth <= 128 || hopper_wide() != nullptr;
}

Ran run_hopper(const Call& call, Call* there)
{
    return run_with(call.launch.depth > 128 ? hopper_wide() : hopper(), call, there);
}

} // namespace flashomp::offload
