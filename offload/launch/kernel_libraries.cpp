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

/// Functions of a library of kernels (library_entry.cpp); null where there is none.
struct Entries {
    Ran (*run)(const Call&, Call*) = nullptr;
    bool (*launches_directly)(int) = nullptr;
};

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

/// The library stays open. `function`: what runs its passes.
Entries open(const std::string& name, const char* function)
{
    const std::string path = path_beside("libflashomp_" + name + ".so." FLASHOMP_SOVERSION);
    void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    Entries entries;
    if (library != nullptr) {
        entries.run = reinterpret_cast<decltype(entries.run)>(dlsym(library, function));
        entries.launches_directly =
            reinterpret_cast<decltype(entries.launches_directly)>(dlsym(library, "flashomp_launches_directly"));
    }
    return entries;
}

/// Libraries, by what is run in them.
enum class Library : std::size_t {
    float32,
    wide,
    latent,
    visible,
    sliced,
    visible_sliced,
    masked,
    masked_tensor,
    few,
    hopper,
    hopper_wide
};

/// Of a library that is opened when it is first asked for.
const Entries& entries_of(Library library)
{
    struct File {
        const char *name, *function;
        bool is_built;
    };
    constexpr bool has_tensor = FLASHOMP_HAS_TENSOR != 0, has_hopper = FLASHOMP_HAS_HOPPER != 0;
    constexpr const char* run_it = "flashomp_run";
    constexpr std::array files{
        File{"float32", run_it, has_tensor},    File{"wide", run_it, has_tensor},
        File{"latent", run_it, has_tensor},     File{"visible", run_it, has_tensor},
        File{"sliced", run_it, has_tensor},     File{"sliced", "flashomp_run_visible", has_tensor},
        File{"masked", run_it, has_tensor},     File{"masked_tensor", run_it, has_tensor},
        File{"few", run_it, has_tensor},        File{"hopper", run_it, has_hopper},
        File{"hopper_wide", run_it, has_hopper}};
    static std::array<std::once_flag, files.size()> asked;
    static std::array<Entries, files.size()> entries{};
    const auto i = static_cast<std::size_t>(library);
    const File& file = files.at(i);
    std::call_once(asked.at(i), [&] { entries.at(i) = file.is_built ? open(file.name, file.function) : Entries{}; });
    return entries.at(i);
}

Ran run_in(Library library, const Call& call, Call* there)
{
    const auto run = entries_of(library).run;
    return run != nullptr ? run(call, there) : Ran{};
}

/// That of 16 bits on tensor cores, for depths beyond 128.
Library library_of(int depth)
{
    return depth > 256 ? Library::latent : Library::wide;
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
        return entries_of(Library::float32).run != nullptr;
    }
    return depth > 128 ? entries_of(library_of(depth)).run != nullptr : has_gpu_code();
}

Ran run_tensor(const Call& call, Call* there)
{
    if (operands_of(call.params.element) == Operands::tf32) {
        return run_in(Library::float32, call, there);
    }
    if (call.launch.depth > 128) {
        return run_in(library_of(call.launch.depth), call, there);
    }
#if FLASHOMP_HAS_TENSOR
    return call.launch.depth == 64 ? run_tensor_depth<Operands::bits16, 64>(call, there)
                                   : run_tensor_depth<Operands::bits16, 128>(call, there);
#else
    return {};
#endif
}

#if FLASHOMP_HAS_TENSOR // else all are here (launch_visible.cpp, launch_sliced.cpp, launch_masked.cpp)
bool has_plain_machine(int depth)
{
    return depth <= most_plain_depth || entries_of(Library::sliced).run != nullptr;
}

Ran run_sliced(const Call& call, Call* there)
{
    return run_in(Library::sliced, call, there);
}

bool has_visible_machine(int depth)
{
    return entries_of(depth > most_plain_depth ? Library::visible_sliced : Library::visible).run != nullptr;
}

Ran run_visible(const Call& call, Call* there)
{
    return call.launch.depth > most_plain_depth ? run_visible_sliced(call, there)
                                                : run_in(Library::visible, call, there);
}

Ran run_visible_sliced(const Call& call, Call* there)
{
    return run_in(Library::visible_sliced, call, there);
}

bool has_masked_machine()
{
    return entries_of(Library::masked).run != nullptr;
}

Ran run_masked(const Call& call, Call* there)
{
    return run_in(Library::masked, call, there);
}
#endif

bool has_masked_tensor_machine()
{
    return entries_of(Library::masked_tensor).run != nullptr;
}

Ran run_masked_tensor(const Call& call, Call* there)
{
    return run_in(Library::masked_tensor, call, there);
}

bool has_few_queries()
{
    return entries_of(Library::few).run != nullptr;
}

Ran run_few_queries(const Call& call, Call* there)
{
    return run_in(Library::few, call, there);
}

bool load_hopper_machine(int device)
{
    const Entries& entries = entries_of(Library::hopper);
    return entries.run != nullptr && (device < 0 || entries.launches_directly(device));
}

bool has_hopper_machine(int depth)
{
    return depth <= 128 || entries_of(Library::hopper_wide).run != nullptr;
}

Ran run_hopper(const Call& call, Call* there)
{
    return run_in(call.launch.depth > 128 ? Library::hopper_wide : Library::hopper, call, there);
}

} // namespace flashomp::offload
