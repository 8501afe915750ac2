#include "descriptors.hpp"

#include "report.hpp"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <link.h>
#include <map>
#include <omp.h>
#include <sstream>
#include <sys/stat.h>
#include <unistd.h>

// crtoffloadbegin.o's, of this program alone.
extern "C" const void* const __offload_func_table[] __attribute__((visibility("hidden")));
extern "C" const void* const __offload_funcs_end[] __attribute__((visibility("hidden")));
extern "C" const char __ehdr_start[] __attribute__((visibility("hidden")));

namespace experiment {

namespace {

/// The kernel of the system reads the bytes for us: an address that is none is a status, not a signal.
bool is_readable(const void* address, std::size_t bytes)
{
    static int ends[2] = {-1, -1};
    if (ends[0] < 0 && pipe(ends) != 0) {
        return false;
    }
    char drained[256];
    while (bytes > 0) {
        const std::size_t piece = std::min(bytes, sizeof drained);
        if (write(ends[1], address, piece) != static_cast<ssize_t>(piece) ||
            read(ends[0], drained, piece) != static_cast<ssize_t>(piece)) {
            return false;
        }
        address = static_cast<const char*>(address) + piece;
        bytes -= piece;
    }
    return true;
}

/// Up to 512 bytes, or "" where they cannot be read or do not end.
std::string string_at(const char* address)
{
    std::string found;
    while (found.size() < 512 && is_readable(address + found.size(), 1)) {
        const char c = address[found.size()];
        if (c == 0) {
            return found;
        }
        found += c;
    }
    return "";
}

/// nm's names by address, with the $ of PTX in place of the dots.
std::map<std::uintptr_t, std::string> symbol_names(const char* path)
{
    std::map<std::uintptr_t, std::string> names;
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);) {
        std::istringstream words(line);
        std::uintptr_t address = 0;
        std::string type, name;
        if (words >> std::hex >> address >> type >> name && name.find("._omp_fn.") != std::string::npos) {
            std::replace(name.begin(), name.end(), '.', '$');
            names[address] = name;
        }
    }
    return names;
}

/// Where libgomp's map says that the function is on the device; null where it is not in the map.
const void* target_address(const void* host)
{
    const int device = omp_get_default_device();
    if (omp_target_is_present(host, device) == 0) { // use_device_ptr would end the program
        return nullptr;
    }
    const void* address = host;
    const void* found = nullptr;
#pragma omp target data use_device_ptr(address)
    {
        found = address;
    }
    return found == host ? nullptr : found;
}

/// "" or what is not as it should be. Before the driver is asked about `fn`, all else agrees.
std::string fault_of(const Driver& driver, const void* host, unsigned index,
                     const std::map<std::uintptr_t, std::string>& names, Descriptor& descriptor)
{
    const Image& image = *registered().image;
    const void* target = target_address(host);
    if (target == nullptr) {
        return "the address map does not hold the function";
    }
    if (reinterpret_cast<std::uintptr_t>(target) % alignof(Descriptor) != 0 ||
        !is_readable(target, sizeof(Descriptor))) {
        return "the target address is no readable descriptor";
    }
    std::memcpy(&descriptor, target, sizeof descriptor);
    if (descriptor.launch != &image.functions[index]) {
        return "descriptor.launch does not point to the function's entry in the registered image";
    }
    const std::string name = string_at(descriptor.launch->name);
    const auto known =
        names.find(reinterpret_cast<std::uintptr_t>(host) - reinterpret_cast<std::uintptr_t>(__ehdr_start));
    if (name.empty() || known == names.end() || known->second != name) {
        return "the name is '" + name + "', and nm says '" + (known == names.end() ? "nothing" : known->second) + "'";
    }
    if (descriptor.registers < 1 || descriptor.registers > 255 || descriptor.most_threads < 32 ||
        descriptor.most_threads > 1024 || descriptor.function == nullptr) {
        return text("%d registers and %d threads are not a kernel's", descriptor.registers, descriptor.most_threads);
    }
    int registers = 0, threads = 0;
    const Status first = driver.function_attribute(&registers, attribute_registers, descriptor.function);
    const Status second = driver.function_attribute(&threads, attribute_threads_per_block, descriptor.function);
    if (first != 0 || second != 0 || registers != descriptor.registers || threads != descriptor.most_threads) {
        return text("the driver says %d registers and %d threads (%s), the descriptor %d and %d", registers, threads,
                    name_of(driver, first != 0 ? first : second), descriptor.registers, descriptor.most_threads);
    }
    const char* driver_name = nullptr;
    if (driver.function_name != nullptr &&
        (driver.function_name(&driver_name, descriptor.function) != 0 || name != driver_name)) {
        return text("the driver calls the kernel '%s'", driver_name == nullptr ? "?" : driver_name);
    }
    return "";
}

} // namespace

void version_facts(const Driver& driver)
{
    int version = 0, multiprocessors = 0, major = 0, minor = 0, optin = 0, reserved = 0;
    char name[128] = "";
    driver.version(&version);
    driver.device_name(name, sizeof name, 0);
    driver.device_attribute(&multiprocessors, device_multiprocessors, 0);
    driver.device_attribute(&major, device_major, 0);
    driver.device_attribute(&minor, device_minor, 0);
    driver.device_attribute(&optin, device_shared_optin, 0);
    driver.device_attribute(&reserved, device_shared_reserved, 0);
    fact("facts.device", text("%s, compute capability %d.%d, %d multiprocessors, driver API %d.%d", name, major, minor,
                              multiprocessors, version / 1000, version % 1000 / 10));
    number("facts.shared_optin", optin, "B", text("shared memory of a block at most; %d B reserved", reserved));
    fact("facts.compiler", "g++ " __VERSION__);
    dl_iterate_phdr(
        [](dl_phdr_info* info, std::size_t, void*) {
            struct stat file {};
            if (std::strstr(info->dlpi_name, "libgomp") != nullptr && stat(info->dlpi_name, &file) == 0) {
                fact("facts.library", text("%s, %lld B", info->dlpi_name, static_cast<long long>(file.st_size)));
            }
            return 0;
        },
        nullptr);
    const Registered& ours = registered();
    fact("facts.registered", text("version %#x (GCC 12: 0x10001), target %d (nvptx: 5)", ours.version, ours.target));
}

bool find_descriptors(const Driver& driver, const char* symbols, Kernels& kernels)
{
    const Registered& ours = registered();
    const auto count = static_cast<unsigned>(__offload_funcs_end - __offload_func_table);
    bool good = ours.image != nullptr && ours.version == 0x10001 && ours.target == 5 &&
                ours.host_table[0] == __offload_func_table && ours.image->function_count == count;
    holds("layout.registration", good,
          text("%u functions in the table, %u in the image", count, good ? ours.image->function_count : 0));
    if (!good) {
        fact("layout", "layout not recognised");
        return false;
    }
    const auto names = symbol_names(symbols);
    kernels = {&driver, std::vector<Function>(count)};
    for (unsigned i = 0; i < count; ++i) {
        Descriptor descriptor{};
        const std::string fault = fault_of(driver, __offload_func_table[i], i, names, descriptor);
        good = fault.empty() && good;
        if (!fault.empty()) {
            holds(text("layout.descriptor.%u", i), false, fault);
            continue;
        }
        kernels.functions[i] = descriptor.function;
        int shared = 0, local = 0;
        driver.function_attribute(&shared, attribute_static_shared, descriptor.function);
        driver.function_attribute(&local, attribute_local, descriptor.function);
        number(text("layout.registers.%u", i), descriptor.registers, "",
               text("%d threads at most, %d B shared, %d B stack: %s", descriptor.most_threads, shared, local,
                    descriptor.launch->name));
    }
    holds("layout.descriptors", good, good ? "every descriptor passed every check" : "layout not recognised");
    return good;
}

} // namespace experiment
