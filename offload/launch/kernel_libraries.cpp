// Kernels in libraries of their own, beside this one and opened when they are first needed. A GPU program loads whole
// or not at all, and the driver compiles all of it: what only Hopper understands must be apart, and what only some
// calls need is not for others to wait for.
#include "launch/tensor_shapes.hpp"

#include <array>
#include <cstddef>
#include <dlfcn.h>
#include <mutex>
#include <string>

namespace flashomp::offload {

namespace {

using RunPass = Ran (*)(const Call&, Call*);

/// A file in the folder of the library that this code is in.
std::string path_beside(const std::string& file)
{
    Dl_info here{};
    if (dladdr(reinterpret_cast<const void*>(&run_hopper), &here) == 0) {
        return {};
    }
    const std::string path = here.dli_fname;
    return path.substr(0, path.find_last_of('/') + 1) + file;
}

/// Null where there is none. It stays open.
RunPass open(const std::string& name)
{
    const std::string path = path_beside("libflashomp_" + name + ".so." FLASHOMP_SOVERSION);
    void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    return library != nullptr ? reinterpret_cast<RunPass>(dlsym(library, "flashomp_run")) : nullptr;
}

enum class Library : std::size_t { float32, wide, visible, masked, hopper, hopper_wide };

/// What runs a library's passes, or null; opened when it is first asked for.
RunPass passes_of(Library library)
{
    constexpr std::array names{"float32", "wide", "visible", "masked", "hopper", "hopper_wide"};
    static std::array<std::once_flag, names.size()> asked;
    static std::array<RunPass, names.size()> run{};
    const auto i = static_cast<std::size_t>(library);
    constexpr std::array is_built{FLASHOMP_HAS_TENSOR != 0, FLASHOMP_HAS_TENSOR != 0, FLASHOMP_HAS_TENSOR != 0,
                                  FLASHOMP_HAS_TENSOR != 0, FLASHOMP_HAS_HOPPER != 0, FLASHOMP_HAS_HOPPER != 0};
    std::call_once(asked[i], [&] { run[i] = is_built[i] ? open(names[i]) : nullptr; });
    return run[i];
}

Ran run_in(Library library, const Call& call, Call* there)
{
    const RunPass run = passes_of(library);
    return run != nullptr ? run(call, there) : Ran{};
}

/// What libgomp drives NVIDIA's GPUs with lies beside this library in a Python wheel, where libgomp does not look.
/// libgomp finds the file by its name where it is open already, and looks once: for whoever is the first to ask for
/// devices. So the file is opened when this library is loaded.
[[maybe_unused]] void* const plugin =
    FLASHOMP_HAS_TENSOR != 0 ? dlopen(path_beside("libgomp-plugin-nvptx.so.1").c_str(), RTLD_NOW | RTLD_LOCAL)
                             : nullptr;

} // namespace

bool has_gpu_code()
{
    return FLASHOMP_HAS_TENSOR != 0;
}

bool has_tensor_machine(Element element, int depth)
{
    if (operands_of(element) == Operands::tf32) {
        return passes_of(Library::float32) != nullptr;
    }
    return depth > 128 ? passes_of(Library::wide) != nullptr : has_gpu_code();
}

Ran run_tensor(const Call& call, Call* there)
{
    if (operands_of(call.params.element) == Operands::tf32) {
        return run_in(Library::float32, call, there);
    }
    if (call.launch.depth > 128) {
        return run_in(Library::wide, call, there);
    }
#if FLASHOMP_HAS_TENSOR
    return call.launch.depth == 64 ? run_tensor_depth<Operands::bits16, 64>(call, there)
                                   : run_tensor_depth<Operands::bits16, 128>(call, there);
#else
    return {};
#endif
}

#if FLASHOMP_HAS_TENSOR // else they are here (launch_visible.cpp, launch_masked.cpp)
bool has_visible_machine()
{
    return passes_of(Library::visible) != nullptr;
}

Ran run_visible(const Call& call, Call* there)
{
    return run_in(Library::visible, call, there);
}

bool has_masked_machine()
{
    return passes_of(Library::masked) != nullptr;
}

Ran run_masked(const Call& call, Call* there)
{
    return run_in(Library::masked, call, there);
}
#endif

bool load_hopper_machine()
{
    return passes_of(Library::hopper) != nullptr;
}

bool has_hopper_machine(int depth)
{
    return depth <= 128 || passes_of(Library::hopper_wide) != nullptr;
}

Ran run_hopper(const Call& call, Call* there)
{
    return run_in(call.launch.depth > 128 ? Library::hopper_wide : Library::hopper, call, there);
}

} // namespace flashomp::offload
