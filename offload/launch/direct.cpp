#include "launch/direct.hpp"

#include "launch/cuda_driver.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <omp.h>
#include <string>
#include <string_view>
#include <unistd.h>

// crtoffloadbegin.o's, of this library alone: host addresses of its kernels, in the order of mkoffload's image.
extern "C" const void* const __offload_func_table[] __attribute__((visibility("hidden"))); // NOLINT: GCC's names
extern "C" const void* const __offload_funcs_end[] __attribute__((visibility("hidden")));  // NOLINT

namespace flashomp::offload {

namespace {

/// libgomp's own record of a kernel, what its map has for a host address (struct targ_fn_descriptor of
/// libgomp/plugin/plugin-nvptx.c, the same from 2018 to 2026).
struct Descriptor {
    void* function = nullptr; ///< CUfunction
    const char* const* name = nullptr;
    int registers = 0;
    int most_threads = 0;
};

/// The system's kernel reads the bytes for us: an address that is none is a status, not a signal.
bool is_readable(const void* address, std::size_t bytes)
{
    int ends[2] = {-1, -1};
    if (bytes > 4096 || pipe(ends) != 0) { // what a pipe takes without a reader
        return false;
    }
    const bool is_written = write(ends[1], address, bytes) == static_cast<ssize_t>(bytes);
    close(ends[0]);
    close(ends[1]);
    return is_written;
}

/// Where libgomp's map says that a kernel is; null where the map has none.
const void* address_there(const void* host, int device)
{
    if (omp_target_is_present(host, device) == 0) { // use_device_ptr would end the program
        return nullptr;
    }
    const void* address = host;
    const void* found = nullptr;
#pragma omp target data device(device) use_device_ptr(address)
    {
        found = address;
    }
    return found != host ? found : nullptr;
}

/// Whether all that can be read of a descriptor fits what the driver says of its kernel.
bool is_descriptor_of_ours(const CudaDriver& driver, const Descriptor& descriptor)
{
    constexpr int most_threads_attribute = 0, registers_attribute = 4; // CU_FUNC_ATTRIBUTE_
    constexpr std::string_view region = "$_omp_fn$";
    if (descriptor.function == nullptr || descriptor.registers < 1 || descriptor.registers > 255 ||
        descriptor.most_threads < 32 || descriptor.most_threads > 1024 ||
        !is_readable(descriptor.name, sizeof *descriptor.name) || !is_readable(*descriptor.name, region.size()) ||
        std::string_view(*descriptor.name).find(region) == std::string_view::npos) {
        return false;
    }
    int registers = 0, threads = 0;
    const char* name = nullptr;
    return driver.FuncGetAttribute(&threads, most_threads_attribute, descriptor.function) == 0 &&
           driver.FuncGetAttribute(&registers, registers_attribute, descriptor.function) == 0 &&
           registers == descriptor.registers && threads == descriptor.most_threads &&
           driver.FuncGetName(&name, descriptor.function) == 0 && std::strcmp(name, *descriptor.name) == 0;
}

/// This library's program on one device.
class Program {
public:
    explicit Program(int device)
    {
        const CudaDriver* const driver = cuda_driver();
        const char* const asked = std::getenv("FLASHOMP_LAUNCH"); // NOLINT(concurrency-mt-unsafe)
        const bool is_refused = asked != nullptr && std::string_view(asked) == "libgomp";
        if (driver == nullptr || driver->FuncGetName == nullptr || is_refused ||
            &__offload_func_table[0] == &__offload_funcs_end[0]) {
            return;
        }
        const void* const found = address_there(*__offload_func_table, device);
        Descriptor descriptor;
        if (found == nullptr || !is_readable(found, sizeof descriptor)) {
            return;
        }
        std::memcpy(&descriptor, found, sizeof descriptor);
        if (is_descriptor_of_ours(*driver, descriptor) && driver->FuncGetModule(&module_, descriptor.function) == 0) {
            driver_ = driver;
        }
    }

    Direct launch(const Entry& asked, int blocks, int warps, void* there)
    {
        const Context context(*this, there);
        if (!context.is_current()) {
            return {};
        }
        // One launch at a time has the stacks: all are on CUDA's default stream, where they follow one another.
        const std::scoped_lock lock(mutex_);
        std::uint64_t bytes = stack_bytes;
        void* const entry = entry_of(asked);
        if (entry == nullptr || !has_stacks(std::int64_t{blocks} * warps)) {
            // The call's launch before may still run: nobody may free its memory, and libgomp, which may come next,
            // would end the program for its failure.
            const int failure = driver_->StreamSynchronize(nullptr);
            return failure != 0 ? Direct{true, failure} : Direct{};
        }
        void* parameters[] = {&there, &stacks_, &bytes};
        const auto teams = static_cast<unsigned>(blocks), height = static_cast<unsigned>(warps);
        const auto dynamic_bytes = static_cast<unsigned>(asked.dynamic_bytes);
        const int status = asked.waits ? driver_->LaunchCooperativeKernel(entry, teams, 1, 1, 32, height, 1,
                                                                          dynamic_bytes, nullptr, parameters)
                                       : driver_->LaunchKernel(entry, teams, 1, 1, 32, height, 1, dynamic_bytes,
                                                               nullptr, parameters, nullptr);
        const bool returns_at_once = status == 0 && !asked.is_awaited;
        const int ended = returns_at_once ? 0 : driver_->StreamSynchronize(nullptr);
        return {true, status != 0 ? status : ended};
    }

    [[nodiscard]] bool is_there() const { return driver_ != nullptr; }

private:
    /// Of a warp. The largest frame in the PTX is 976 bytes (sub.u64 %frame), and few functions call one another; no
    /// test holds that.
    static constexpr std::uint64_t stack_bytes = 8192;

    /// The context that memory of the device is of is the thread's current one as long as this lives.
    class Context {
    public:
        Context(Program& program, void* memory) : driver_(*program.driver_)
        {
            constexpr int context_attribute = 1; // CU_POINTER_ATTRIBUTE_CONTEXT
            void* wanted = nullptr;
            if (driver_.PointerGetAttribute(&wanted, context_attribute, reinterpret_cast<std::uintptr_t>(memory)) !=
                    0 ||
                driver_.CtxGetCurrent(&before_) != 0) {
                return;
            }
            is_current_ = wanted == before_ || driver_.CtxSetCurrent(wanted) == 0;
            is_changed_ = is_current_ && wanted != before_;
        }
        ~Context()
        {
            if (is_changed_) {
                driver_.CtxSetCurrent(before_);
            }
        }
        Context(const Context&) = delete;
        Context& operator=(const Context&) = delete;

        [[nodiscard]] bool is_current() const { return is_current_; }

    private:
        const CudaDriver& driver_;
        void* before_ = nullptr;
        bool is_current_ = false, is_changed_ = false;
    };

    void* entry_of(const Entry& asked)
    {
        std::atomic<void*>& known = entries_.at(static_cast<std::size_t>(asked.number));
        void* entry = known.load(std::memory_order_acquire);
        if (entry == nullptr) {
            const std::string name = "flashomp_entry_" + std::to_string(asked.number);
            constexpr int dynamic_attribute = 8; // CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            if (driver_->ModuleGetFunction(&entry, module_, name.c_str()) != 0 ||
                driver_->FuncSetAttribute(entry, dynamic_attribute, asked.dynamic_bytes) != 0) {
                return nullptr;
            }
            known.store(entry, std::memory_order_release);
        }
        return entry;
    }

    bool has_stacks(std::int64_t warps)
    {
        if (warps > warps_) {
            std::uintptr_t more = 0;
            driver_->StreamSynchronize(nullptr); // a launch that nobody waited for may have the old ones
            if (driver_->MemAlloc(&more, static_cast<std::uint64_t>(warps) * stack_bytes) != 0) {
                return false;
            }
            if (stacks_ != 0) {
                driver_->MemFree(stacks_);
            }
            stacks_ = more;
            warps_ = warps;
        }
        return true;
    }

    const CudaDriver* driver_ = nullptr;
    void* module_ = nullptr;
    std::mutex mutex_;
    std::uintptr_t stacks_ = 0; ///< in the device's memory, until the process ends
    std::int64_t warps_ = 0;    ///< that have a stack there
    std::array<std::atomic<void*>, most_entries> entries_{};
};

/// Null where launches are libgomp's.
Program* program_on(int device)
{
    constexpr std::size_t most_devices = 64;
    static std::array<std::once_flag, most_devices> asked;
    static std::array<Program*, most_devices> programs{}; // for calls in atexit handlers, too
    const auto i = static_cast<std::size_t>(device);
    if (device < 0 || i >= most_devices) {
        return nullptr;
    }
    std::call_once(asked[i], [&] {
        auto program = std::make_unique<Program>(device);
        programs[i] = program->is_there() ? program.release() : nullptr;
    });
    return programs[i];
}

} // namespace

Direct launch_directly(const Entry& entry, int device, int blocks, int warps, void* there)
{
    Program* const program = program_on(device);
    return program != nullptr ? program->launch(entry, blocks, warps, there) : Direct{};
}

bool launches_directly(int device)
{
    return program_on(device) != nullptr;
}

} // namespace flashomp::offload
