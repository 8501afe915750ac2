#include "place.hpp"

#include "device_policy.hpp"
#include "host_isa.hpp"
#include "host_threads.hpp"
#include "store.hpp"

#include "launch/devices.hpp"

#include "cuda/kernels.hpp"
#include "cuda/runtime.hpp"

#include "flashomp/device.hpp"
#include "flashomp/error.hpp"

#include <algorithm>
#include <cstdlib>
#include <fmt/format.h>
#include <unistd.h>
#include <vector>

namespace flashomp {

namespace {

[[noreturn]] void refuse_device(int index, const std::vector<DeviceFacts>& found)
{
    const std::string reason =
        found.empty() ? std::string(why_no_device()) : fmt::format("only {} GPU(s) were found", found.size());
    throw Error(fmt::format("device was {}, but {}; allowed are: auto, host{}.", index, reason,
                            found.empty() ? "" : fmt::format(", 0 to {}", found.size() - 1)));
}

/// FLASHOMP_DEVICE_ISA=sm_80 keeps to what every GPU can do.
bool keeps_to_warps()
{
    const char* isa = std::getenv("FLASHOMP_DEVICE_ISA"); // NOLINT(concurrency-mt-unsafe)
    if (isa != nullptr && *isa != '\0' && std::string_view(isa) != "sm_80" && std::string_view(isa) != "sm_90a") {
        throw Error(fmt::format("FLASHOMP_DEVICE_ISA was '{}'; allowed are: sm_80, sm_90a.", isa));
    }
    return isa != nullptr && std::string_view(isa) == "sm_80";
}

[[noreturn]] void refuse_cuda(std::string_view allowed)
{
    throw NotBuilt(fmt::format("backend was cuda, which is not in this build; allowed are: {}.", allowed));
}

/// openmp or cuda. Throws where cuda was named and cannot run the call.
Backend chosen_backend(const Options& options)
{
    const bool host_only = options.device.kind == Device::Kind::host || options.machine == Machine::host;
    if (options.score_mod && options.backend == Backend::cuda) {
        throw Error("score_mod was given with backend cuda; allowed with it are: openmp, reference.");
    }
    if (options.backend != Backend::cuda) {
        const bool is_cuda =
            !options.score_mod && options.backend == Backend::automatic && !host_only && cuda::device_count() > 0;
        return is_cuda ? Backend::cuda : Backend::openmp;
    }
    if (!cuda::is_built()) {
        refuse_cuda("openmp, reference");
    }
    if (options.device.kind == Device::Kind::host) {
        throw Error("device was host, but the cuda backend runs on GPUs; allowed are: auto and the numbers of GPUs.");
    }
    if (options.machine == Machine::host) {
        throw Error("machine was host, but the cuda backend runs on GPUs; allowed there are: automatic, plain, tensor, "
                    "hopper.");
    }
    if (cuda::device_count() == 0) {
        throw Error("backend was cuda, but no GPU was found; allowed are: openmp, reference.");
    }
    return Backend::cuda;
}

} // namespace

std::string host_name(int threads)
{
    return fmt::format("host ({} thread{})", threads, threads == 1 ? "" : "s");
}

std::string on_host_because(std::string_view reason)
{
    return fmt::format("running on the host: {}{}", reason,
                       device_is_demanded() ? ", although OMP_TARGET_OFFLOAD is MANDATORY" : "");
}

void check_memory(const ConstTensorView& view, const char* name, const Place& place, bool is_asynchronous,
                  bool is_read_on_host)
{
    if (view && is_asynchronous && view.memory == Memory::host && !is_read_on_host) {
        throw Error(
            fmt::format("{} is in host memory, but a stream was given; allowed with one is device memory.", name));
    }
    if (view.memory == Memory::device && !place.hardware.is_device) {
        throw Error(fmt::format("{} is in device memory, but the call runs on {}; allowed there is host memory.", name,
                                place.name));
    }
}

void wait_before(const Space& space)
{
    if (space.kind != Space::Kind::openmp || space.stream == nullptr) {
        return;
    }
    switch (offload::wait_for_stream(space.device, space.stream)) {
    case offload::StreamState::done:
        return;
    case offload::StreamState::captured:
        throw Error(
            "stream is being captured into a CUDA graph, which has no place for OpenMP's target regions; allowed "
            "is a stream that is not captured, or backend cuda.");
    case offload::StreamState::failed:
        throw RunFailure(fmt::format("waiting for the stream on {} failed.", space.name()));
    }
}

void expect_own_devices(Backend backend)
{
    if (are_devices_of_parent(backend)) {
        throw Error(
            "the call was to run on a GPU, but this process was forked from one that has used its GPUs; allowed "
            "are device host, or a process that is started anew (spawn).");
    }
}

Space space_of(const Hardware& hardware, const Options& options)
{
    if (!hardware.is_device) {
        return {};
    }
    const auto kind = hardware.backend == Backend::cuda ? Space::Kind::cuda : Space::Kind::openmp;
    const bool is_asynchronous = kind == Space::Kind::cuda && options.stream.has_value();
    return {kind, hardware.device, options.stream.value_or(nullptr), is_asynchronous};
}

tuning::Key tuning_key(const Hardware& hardware)
{
    if (!hardware.is_device) {
        return {cpu_model(), std::string(hardware.isa->name), tuning::this_build()};
    }
    return {hardware.gpu.name, hardware.gpu.driver, tuning::this_build()};
}

void set_gpu(Hardware& hardware, int device, const DeviceFacts& facts, bool is_there)
{
    hardware.is_device = true;
    hardware.device = device;
    hardware.gpu = facts;
    const bool keeps = keeps_to_warps(); // before a library is opened, which the driver compiles
    const bool has_kernels = hardware.backend == Backend::cuda || facts.matrix_units != MatrixUnits::warpgroup ||
                             (!keeps && offload::load_hopper_machine(is_there ? device : -1));
    if (!has_kernels || keeps) {
        hardware.gpu.matrix_units = std::min(facts.matrix_units, MatrixUnits::warp);
    }
}

Place choose_place(const Options& options)
{
    Place place;
    place.hardware.backend = chosen_backend(options);
    place.hardware.isa = &choose_host_isa();
    place.hardware.is_isa_named = is_host_isa_named();
    place.hardware.threads = planned_threads(options.threads);
    place.hardware.core_cache_bytes = sysconf(_SC_LEVEL2_CACHE_SIZE);
    const auto on_host = [&](std::string_view reason) {
        if (options.stream) {
            throw Error(fmt::format(
                "stream was given, but the call runs on the host ({}); allowed is a stream with a GPU.", reason));
        }
        place.hardware.tuned = tuning::tables_for(cpu_model(), place.hardware.isa->name);
        place.name = host_name(place.hardware.threads);
        place.note = on_host_because(reason);
        return place;
    };
    const Device& wanted = options.device;
    // The host machine was named, and it runs nowhere else: the choice of device is made with it.
    const bool host_only = options.machine == Machine::host;
    if (wanted.kind == Device::Kind::host || (wanted.kind == Device::Kind::automatic && host_only)) {
        return on_host("asked for");
    }
    if (wanted.kind == Device::Kind::automatic && options.score_mod && !options.score_mod.kernels->has_gpu_code) {
        return on_host("score_mod has no GPU code");
    }
    if (are_devices_of_parent(place.hardware.backend)) {
        if (wanted.kind == Device::Kind::gpu || options.backend == Backend::cuda || device_is_demanded()) {
            expect_own_devices(place.hardware.backend);
        }
        place.hardware.backend = Backend::openmp;
        return on_host("this process was forked from one that has used its GPUs");
    }
    const std::vector<DeviceFacts>& found = device_facts(place.hardware.backend);
    if (wanted.kind == Device::Kind::gpu &&
        (wanted.index < 0 || static_cast<std::size_t>(wanted.index) >= found.size())) {
        refuse_device(wanted.index, found);
    }
    if (found.empty()) {
        if (device_is_demanded()) {
            throw Error(fmt::format("device was auto and OMP_TARGET_OFFLOAD demands a GPU (MANDATORY), but {}; allowed "
                                    "are: host, or another OMP_TARGET_OFFLOAD.",
                                    why_no_device()));
        }
        return on_host(why_no_device());
    }
    const int device = wanted.kind == Device::Kind::gpu ? wanted.index : 0;
    if (options.stream && !found[static_cast<std::size_t>(device)].shares_cuda_memory) {
        throw Error(
            "stream was given, but OpenMP works on the GPU in a CUDA context of its own, since the process used "
            "OpenMP there before flashomp; allowed is a call without a stream, or backend cuda.");
    }
    set_gpu(place.hardware, device, found[static_cast<std::size_t>(device)]);
    place.hardware.tuned = tuning::tables_for(place.hardware.gpu.name, place.hardware.gpu.driver);
    place.name = fmt::format("{} (device {})", place.hardware.gpu.name, device);
    place.note = wanted.kind == Device::Kind::gpu ? "running on the GPU: asked for"
                                                  : "running on the GPU: it is the first one found";
    return place;
}

Place place_on(const KnownDevice& device, const Options& options)
{
    const bool is_cuda =
        options.backend == Backend::cuda || (options.backend == Backend::automatic && cuda::is_built());
    if (is_cuda && !cuda::is_built()) {
        refuse_cuda("openmp");
    }
    if (!is_cuda && !offload::has_gpu_code()) {
        throw Error(fmt::format("device was {}, but this build has no GPU code; allowed are: auto, host.", device.key));
    }
    Options on_host = options;
    on_host.backend = Backend::openmp;
    on_host.machine = Machine::automatic;
    on_host.device.kind = Device::Kind::host;
    Place place = choose_place(on_host);
    place.hardware.backend = is_cuda ? Backend::cuda : Backend::openmp;
    set_gpu(place.hardware, 0, device.facts, false);
    place.hardware.tuned = tuning::tables_for(device.facts.name, {}); // those that were shipped
    place.name = fmt::format("{} (planned for, not looked for)", device.facts.name);
    place.note = fmt::format("named as {}", device.key);
    return place;
}

void expect_where_sent(const Place& place, bool on_device)
{
    if (place.hardware.is_device && !on_device) {
        throw RunFailure(
            fmt::format("the call was sent to {}, but its kernels report that they ran on the host.", place.name));
    }
}

int startable_threads(const Plan& plan, int most_threads)
{
    int wanted = 1;
    for (const PassPlan& pass : plan.passes) {
        wanted = std::max(wanted, pass.launch.crews * pass.launch.crew_threads);
    }
    wanted = std::min(wanted, most_threads);
    return host_threads(wanted, wanted);
}

} // namespace flashomp
