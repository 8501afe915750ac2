// What is known about devices and the host. OpenMP 5 tells how many devices there are, not what they are; the
// CUDA driver, where it is there, does. The CUDA backend asks its own run time.
#include "flashomp/device.hpp"

#include "device_policy.hpp"
#include "host_isa.hpp"
#include "launch/cuda_driver.hpp"
#include "launch/devices.hpp"
#include "plan.hpp"

#include "cuda/runtime.hpp"

#include "flashomp/error.hpp"

#include <array>
#include <cstdlib>
#include <fmt/format.h>
#include <fstream>
#include <string>
#include <unistd.h>

namespace flashomp {

namespace {

/// CUDA gives every lane 1 KB of stack, and libgomp asks for no more. Not all kernels stay within it (tools/ptx_report
/// knows these limits), least of all on devices other than Hopper, whose registers are used otherwise.
void deepen_stack(const offload::CudaDriver& driver, int device, int capability_major)
{
    constexpr int stack_size = 0; // CU_LIMIT_STACK_SIZE
    const std::size_t bytes = capability_major == 9 ? 1280 : 2048;
    if (offload::device_answers(device)) { // and leaves its context current in this thread
        driver.CtxSetLimit(stack_size, bytes);
    }
}

/// What the driver says of its device `index`; nothing beyond the name where it says nothing.
DeviceFacts described(int index)
{
    DeviceFacts facts;
    facts.name = fmt::format("OpenMP device {}", index);
    facts.shares_cuda_memory = offload::shares_cuda_memory(index);
    const offload::CudaDriver* const driver = offload::cuda_driver();
    if (driver == nullptr) {
        return facts;
    }
    std::array<char, 128> text{};
    if (driver->DeviceGetName(text.data(), static_cast<int>(text.size()), index) == 0) {
        facts.name = text.data();
    }
    const auto ask = [&](int number, int otherwise) {
        int value = 0;
        return driver->DeviceGetAttribute(&value, number, index) == 0 ? value : otherwise;
    };
    // Numbers of cuda.h's CUdevice_attribute.
    constexpr int multiprocessor_count = 16, l2_cache_size = 38, capability_major = 75, capability_minor = 76,
                  shared_of_multiprocessor = 81, registers_of_multiprocessor = 82;
    facts.multiprocessors = ask(multiprocessor_count, 0);
    facts.registers = ask(registers_of_multiprocessor, facts.registers);
    facts.shared_bytes = ask(shared_of_multiprocessor, 0);
    facts.l2_bytes = ask(l2_cache_size, 0);
    facts.major = ask(capability_major, 0);
    facts.minor = ask(capability_minor, 0);
    facts.matrix_units = matrix_units_of(facts.major, facts.minor);
    if (facts.major > 0) {
        deepen_stack(*driver, index, facts.major);
    }
    int number = 0;
    if (driver->DriverGetVersion(&number) == 0) {
        facts.driver = fmt::format("{}.{}", number / 1000, number % 1000 / 10);
    }
    return facts;
}

/// facts_of(0), facts_of(1), ...
template <class FactsOf>
std::vector<DeviceFacts> all_of(int count, FactsOf facts_of)
{
    std::vector<DeviceFacts> all;
    for (int index = 0; index < count; ++index) {
        all.push_back(facts_of(index)); // NOLINT(performance-inefficient-vector-operation): a few, once
    }
    return all;
}

// What calls ask for, here and below, is never destroyed: one in an atexit handler asks for it, too.

struct Found {
    std::vector<DeviceFacts> devices;
    pid_t process; ///< that has asked the driver
};

const Found& found_devices(Backend backend)
{
    if (backend == Backend::cuda || (backend == Backend::automatic && cuda::device_count() > 0)) {
        static const Found& found = *new Found{all_of(cuda::device_count(), cuda::device_facts), getpid()};
        return found;
    }
    static const Found& found = *new Found{all_of(offload::device_count(), described), getpid()};
    return found;
}

} // namespace

const std::vector<DeviceFacts>& device_facts(Backend backend)
{
    return found_devices(backend).devices;
}

std::vector<DeviceInfo> devices(Backend backend)
{
    std::vector<DeviceInfo> list;
    if (backend == Backend::reference) {
        return list;
    }
    for (const DeviceFacts& facts : device_facts(backend)) {
        list.push_back({static_cast<int>(list.size()), facts.name, facts.capability(), facts.multiprocessors,
                        facts.driver, facts.l2_bytes, facts.shared_bytes, facts.shares_cuda_memory});
    }
    return list;
}

bool are_devices_of_parent(Backend backend)
{
    const Found& found = found_devices(backend);
    return !found.devices.empty() && found.process != getpid();
}

namespace {

/// Empty where the environment names none. Read every time: tests change it between calls.
std::string_view named_host_isa()
{
    const char* name = std::getenv("FLASHOMP_HOST_ISA"); // NOLINT(concurrency-mt-unsafe)
    return name == nullptr ? "" : name;
}

} // namespace

bool is_host_isa_named()
{
    return !named_host_isa().empty();
}

const offload::HostIsa& choose_host_isa()
{
    const std::string_view forced = named_host_isa();
    std::string names;
    for (const offload::HostIsa& isa : offload::host_isas()) {
        if (!isa.is_supported()) {
            continue;
        }
        if (forced.empty() || isa.name == forced) {
            return isa;
        }
        names += (names.empty() ? "" : ", ") + std::string(isa.name);
    }
    throw Error(fmt::format("FLASHOMP_HOST_ISA was '{}'; this CPU and build have: {}.", forced, names));
}

const std::string& cpu_model()
{
    static const std::string& model = *new std::string([] {
        // x86 has a name; AArch64 numbers for who made it and which part it is, which will do.
        std::ifstream lines("/proc/cpuinfo");
        std::string numbers;
        for (std::string line; std::getline(lines, line) && !line.empty();) { // of the first CPU
            const std::size_t colon = line.find(": ");
            if (colon == std::string::npos) {
                continue;
            }
            if (line.starts_with("model name")) {
                return line.substr(colon + 2);
            }
            if (line.starts_with("CPU implementer") || line.starts_with("CPU part")) {
                numbers += (numbers.empty() ? "CPU " : " ") + line.substr(colon + 2);
            }
        }
        return numbers;
    }());
    return model;
}

std::string host_isa()
{
    return std::string(choose_host_isa().name);
}

std::string host_isa(DType dtype)
{
    return std::string(offload::isa_for(choose_host_isa(), kernel_element(dtype)).name);
}

} // namespace flashomp
