// What the C interface tells of the library, its build and its devices; and the defaults of its structs.
#include "arguments.hpp"
#include "options.hpp"
#include "sized.hpp"
#include "status.hpp"
#include "text.hpp"

#include "device_policy.hpp"
#include "host_isa.hpp"
#include "plan.hpp"

#include "flashomp/device.hpp"

#include <array>
#include <fmt/format.h>
#include <vector>

namespace flashomp::capi {

namespace {

static_assert(FLASHOMP_ABI_VERSION == FLASHOMP_SOVERSION, "programs are linked to the ABI by the SONAME's number");

// Sizes do not change any more once a version with them is released: a grown struct adds one.
constexpr std::array<std::size_t, 1> sizes_of_device_info{200};
static_assert(sizes_of_device_info.back() == sizeof(flashomp_device_info));
constexpr Versions<flashomp_device_info> device_info_versions{"flashomp_device_info", sizes_of_device_info};

flashomp_device_info described(const DeviceInfo& device)
{
    flashomp_device_info info{};
    copy_text(info.name, device.name);
    copy_text(info.capability, device.capability);
    copy_text(info.driver, device.driver);
    info.index = device.index;
    info.multiprocessors = device.multiprocessors;
    info.l2_bytes = device.l2_bytes;
    info.shared_bytes = device.shared_bytes;
    info.shares_cuda_memory = device.shares_cuda_memory ? 1 : 0;
    return info;
}

} // namespace

} // namespace flashomp::capi

using namespace flashomp::capi;

const char* flashomp_version()
{
    return flashomp::build_info().version;
}

int flashomp_abi_version()
{
    return FLASHOMP_ABI_VERSION;
}

void flashomp_options_init(flashomp_options* options, size_t size)
{
    init_struct(options, size, default_options());
}

void flashomp_forward_args_init(flashomp_forward_args* args, size_t size)
{
    init_struct(args, size, default_of<flashomp_forward_args>());
}

void flashomp_backward_args_init(flashomp_backward_args* args, size_t size)
{
    init_struct(args, size, default_of<flashomp_backward_args>());
}

void flashomp_append_args_init(flashomp_append_args* args, size_t size)
{
    init_struct(args, size, default_of<flashomp_append_args>());
}

void flashomp_allocator_init(flashomp_allocator* allocator, size_t size)
{
    init_struct(allocator, size, default_of<flashomp_allocator>());
}

void flashomp_report_init(flashomp_report* report, size_t size)
{
    init_struct(report, size, default_of<flashomp_report>());
}

void flashomp_device_info_init(flashomp_device_info* info, size_t size)
{
    init_struct(info, size, flashomp_device_info{});
}

int flashomp_device_count(int32_t backend)
{
    int count = 0;
    const flashomp_status status = guarded([&] {
        const flashomp::Backend of = backend_of(backend);
        count = of == flashomp::Backend::reference ? 0 : static_cast<int>(flashomp::device_facts(of).size());
    });
    return status == FLASHOMP_OK ? count : -1;
}

flashomp_status flashomp_get_device(int32_t backend, int32_t index, flashomp_device_info* info)
{
    return guarded([&] {
        if (info == nullptr) {
            throw flashomp::Error("info was null; it must point to a flashomp_device_info.");
        }
        check_size("info", info->size, device_info_versions);
        const std::vector<flashomp::DeviceInfo> found = flashomp::devices(backend_of(backend));
        if (index < 0 || static_cast<std::size_t>(index) >= found.size()) {
            throw flashomp::Error(fmt::format("index was {}, but {} GPU(s) were found; it must be 0 or more and less.",
                                              index, found.size()));
        }
        write_struct(info, described(found.at(static_cast<std::size_t>(index))));
    });
}

const char* flashomp_host_isa(const flashomp_dtype* dtype)
{
    const char* name = nullptr;
    const flashomp_status status = guarded([&] {
        const auto& best = flashomp::choose_host_isa();
        const auto& isa = dtype == nullptr
                              ? best
                              : flashomp::offload::isa_for(best, flashomp::kernel_element(dtype_of("dtype", *dtype)));
        name = isa.name.data(); // of a literal
    });
    return status == FLASHOMP_OK ? name : nullptr;
}

const flashomp_build* flashomp_get_build()
{
    static const flashomp_build build = [] {
        const flashomp::BuildInfo& info = flashomp::build_info();
        return flashomp_build{sizeof(flashomp_build), info.version, info.commit, info.compiler, info.flags,
                              info.offload,           info.backends};
    }();
    return &build;
}
