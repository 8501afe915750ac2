#include "own_link.hpp"

#include "report.hpp"

#include <chrono>
#include <cstring>

namespace experiment {

namespace {

const std::string prefix = "own_entry_of_";

/// The parallel bodies that a module defines: GCC's outlined functions that are no target region themselves.
std::vector<std::string> bodies_of(const std::string& ptx)
{
    const std::string mark = "// BEGIN FUNCTION DEF: ";
    std::vector<std::string> bodies;
    for (std::size_t at = ptx.find(mark); at != std::string::npos; at = ptx.find(mark, at + 1)) {
        const std::size_t first = at + mark.size();
        const std::string name = ptx.substr(first, ptx.find('\n', first) - first);
        if (name.find("$_omp_fn$") != std::string::npos && name.find("$impl") == std::string::npos) {
            bodies.push_back(name);
        }
    }
    return bodies;
}

/// An entry that sets up what GCC's code needs, the warp's stack and its lanes' mask, and calls one body. The body's
/// variables are one pointer, the entry's first parameter, which it lays down in local memory.
std::string entry_for(const std::string& body)
{
    return ".visible .entry " + prefix + body +
           " (.param .u64 arg, .param .u64 stack, .param .u64 size)\n{\n"
           ".reg .u32 warp, warps, block, zero;\n.reg .u64 top, base, bytes, number, slot, variables;\n"
           ".local .align 16 .b8 captured[16];\n"
           "mov.u32 warp, %tid.y;\nmov.u32 warps, %ntid.y;\nmov.u32 block, %ctaid.x;\nmov.u32 zero, 0;\n"
           "cvt.u64.u32 number, warp;\nmad.wide.u32 number, warps, block, number;\n"
           "ld.param.u64 base, [stack];\nld.param.u64 bytes, [size];\n"
           "add.u64 top, base, bytes;\nmad.lo.u64 top, number, bytes, top;\n"
           "mov.u64 slot, __nvptx_stacks;\nmad.wide.u32 slot, warp, 8, slot;\nst.shared.u64 [slot], top;\n"
           "mov.u64 slot, __nvptx_uni;\nmad.wide.u32 slot, warp, 4, slot;\nst.shared.u32 [slot], zero;\n"
           "ld.param.u64 variables, [arg];\nst.local.u64 [captured], variables;\n"
           "mov.u64 variables, captured;\ncvta.local.u64 variables, variables;\n"
           "{\n.param .u64 out;\nst.param.u64 [out], variables;\ncall " +
           body + ", (out);\n}\nret;\n}\n";
}

} // namespace

std::string with_entries(const std::string& ptx)
{
    std::string whole = ptx;
    for (const std::string& body : bodies_of(ptx)) {
        whole += "\n" + entry_for(body);
    }
    return whole;
}

bool link_program(const Driver& driver, const std::string& key, LinkOptions options, OwnProgram& program)
{
    const auto start = std::chrono::steady_clock::now();
    const Image& image = *registered().image;
    static char log[8192];
    log[0] = 0;
    int names[4] = {jit_error_log, jit_error_log_bytes};
    void* values[4] = {log, reinterpret_cast<void*>(sizeof log)};
    unsigned count = 2;
    const auto option = [&](int name, int value) {
        names[count] = name;
        values[count++] = reinterpret_cast<void*>(static_cast<std::uintptr_t>(value));
    };
    if (options.target != 0) {
        option(jit_target, options.target);
    }
    if (options.max_registers != 0) {
        option(jit_max_registers, options.max_registers);
    }
    LinkState state = nullptr;
    Status status = driver.link_create(count, names, values, &state);
    if (status != 0) {
        return holds(key + ".link", false, text("cuLinkCreate: %s", name_of(driver, status)));
    }
    for (unsigned i = 0; i < image.object_count && status == 0; ++i) {
        std::string ptx = options.entries ? with_entries(image.objects[i].code) : image.objects[i].code;
        status = driver.link_add(state, jit_input_ptx, ptx.data(), ptx.size() + 1, "module", 0, nullptr, nullptr);
        if (status != 0) {
            holds(key + ".link", false, text("module %u: %s: %.600s", i, name_of(driver, status), log));
        }
    }
    void* cubin = nullptr;
    std::size_t bytes = 0;
    if (status == 0) {
        status = driver.link_complete(state, &cubin, &bytes);
        status = status != 0 ? status : driver.module_load(&program.module, cubin);
        if (status != 0) {
            holds(key + ".link", false, text("%s: %.600s", name_of(driver, status), log));
        }
    }
    driver.link_destroy(state);
    if (status != 0) {
        return false;
    }
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
    number(key + ".link_time", took.count(), "ms", text("%u modules, cubin of %zu B", image.object_count, bytes));
    program.kernels = {&driver, std::vector<Function>(image.function_count)};
    bool all = true;
    for (unsigned i = 0; i < image.function_count; ++i) {
        Function& function = program.kernels.functions[i];
        all = driver.module_function(&function, program.module, image.functions[i].name) == 0 && all;
        if (function != nullptr && (std::strstr(image.functions[i].name, "pool") != nullptr || i == 0)) {
            int registers = 0, shared = 0, binary = 0;
            driver.function_attribute(&registers, attribute_registers, function);
            driver.function_attribute(&shared, attribute_static_shared, function);
            driver.function_attribute(&binary, attribute_binary_version, function);
            number(text("%s.registers.%u", key.c_str(), i), registers, "",
                   text("%d B shared, binary version %d: %s", shared, binary, image.functions[i].name));
        }
    }
    return holds(key + ".link", all, all ? "linked, loaded, every kernel found" : "a kernel is missing");
}

Function own_entry(const Driver& driver, const OwnProgram& program, const std::string& region)
{
    const Image& image = *registered().image;
    Function found = nullptr;
    for (unsigned i = 0; i < image.object_count && found == nullptr; ++i) {
        for (const std::string& body : bodies_of(image.objects[i].code)) {
            if (found == nullptr && body.find(region) != std::string::npos &&
                driver.module_function(&found, program.module, (prefix + body).c_str()) != 0) {
                found = nullptr;
            }
        }
    }
    return found;
}

} // namespace experiment
