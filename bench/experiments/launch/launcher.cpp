#include "launcher.hpp"

#include <cstring>

extern "C" {
void __real_GOMP_target_ext(int, experiment::HostFunction, std::size_t, void**, std::size_t*, unsigned short*, unsigned,
                            void**, void**);
void __real_GOMP_offload_register_ver(unsigned, const void*, int, const void*);
}

namespace experiment {

namespace {

Registered from_constructor;
thread_local const Kernels* current_kernels = nullptr;
thread_local Way current_way;
thread_local Status status = 0;
thread_local int region = -1;
thread_local bool noting = false;

enum : int { no_memory = -1, unknown_region = -2, unknown_mapping = -3 }; // beside the driver's statuses

// Of gomp-constants.h. In the low byte of a kind: what is mapped how; the rest is its alignment.
constexpr unsigned map_firstprivate = 0x0c, map_firstprivate_int = 0x0d;

/// num_teams and thread_limit, which the compiler hands over in a list that ends with null.
void read_arguments(void** arguments, int& teams, int& warps)
{
    constexpr std::intptr_t device_mask = 0x7f, value_follows = 0x80, id_mask = 0xff00, num_teams = 0x100,
                            thread_limit = 0x200;
    constexpr int value_shift = 16;
    while (arguments != nullptr && *arguments != nullptr) {
        const auto id = reinterpret_cast<std::intptr_t>(*arguments++);
        const std::intptr_t value =
            (id & value_follows) != 0 ? reinterpret_cast<std::intptr_t>(*arguments++) : id >> value_shift;
        if ((id & device_mask) == 0) {
            if ((id & id_mask) == num_teams) {
                teams = static_cast<int>(value);
            } else if ((id & id_mask) == thread_limit) {
                warps = static_cast<int>(value);
            }
        }
    }
}

int number_of(HostFunction function)
{
    const void* const* table = from_constructor.host_table;
    if (table != nullptr) {
        const auto* first = static_cast<const void* const*>(table[0]);
        const auto* end = static_cast<const void* const*>(table[1]);
        for (const auto* entry = first; entry != end; ++entry) {
            if (*entry == reinterpret_cast<const void*>(function)) {
                return static_cast<int>(entry - first);
            }
        }
    }
    return -1;
}

/// Writes the variables' struct into pinned memory: one slot each, and behind the slots what is copied. 0, and where
/// the kernel finds the struct, or a reason not to launch.
Status write_variables(Lane& lane, Variables how, const Driver& driver, std::size_t count, void** host,
                       std::size_t* sizes, unsigned short* kinds, Address& where)
{
    const unsigned block = lane.next++ % variable_blocks;
    std::byte* const to = lane.blocks + block * block_bytes;
    where = how == Variables::pinned ? reinterpret_cast<Address>(to) : lane.copies + block * block_bytes;
    std::size_t used = 8 * count;
    for (std::size_t i = 0; i < count; ++i) {
        const unsigned kind = kinds[i] & 0xff;
        auto slot = reinterpret_cast<Address>(host[i]);
        if (kind == map_firstprivate) {
            used = (used + 15) / 16 * 16;
            if (used + sizes[i] > block_bytes) {
                return unknown_mapping;
            }
            std::memcpy(to + used, host[i], sizes[i]);
            slot = where + used;
            used += sizes[i];
        } else if (kind != map_firstprivate_int) {
            return unknown_mapping;
        }
        if (8 * i + 8 > block_bytes) {
            return unknown_mapping;
        }
        std::memcpy(to + 8 * i, &slot, 8);
    }
    if (how == Variables::pinned || count == 0) {
        return 0;
    }
    return driver.to_device_async(where, to, used, lane.stream);
}

} // namespace

const Registered& registered()
{
    return from_constructor;
}

void go(const Kernels* kernels, Way way)
{
    current_kernels = kernels;
    current_way = way;
    status = 0;
}

Status last_status()
{
    return status;
}

int last_region()
{
    return region;
}

void only_note(bool on)
{
    noting = on;
}

Status make_lane(const Driver& driver, std::size_t stack_bytes, Lane& lane)
{
    void* blocks = nullptr;
    Status made = driver.stream_create(&lane.stream, stream_non_blocking);
    made = made != 0 ? made : driver.mem_alloc(&lane.stacks, stack_bytes);
    made = made != 0 ? made : driver.mem_alloc(&lane.copies, variable_blocks * block_bytes);
    made = made != 0 ? made : driver.host_alloc(&blocks, variable_blocks * block_bytes, host_portable_mapped);
    lane.blocks = static_cast<std::byte*>(blocks);
    return made;
}

Status launch(const Driver& driver, Function function, const Way& way, int teams, int warps, Address variables)
{
    Address stacks = way.lane->stacks;
    std::size_t stack_bytes = way.stack_bytes;
    void* parameters[] = {&variables, &stacks, &stack_bytes};
    Status launched = driver.launch(function, static_cast<unsigned>(teams), 1, 1, 32, static_cast<unsigned>(warps), 1,
                                    way.dynamic_bytes, way.lane->stream, parameters, nullptr);
    return launched == 0 && way.wait ? driver.stream_synchronize(way.lane->stream) : launched;
}

} // namespace experiment

extern "C" void __wrap_GOMP_offload_register_ver(unsigned version, const void* host_table, int target,
                                                 const void* image)
{
    using namespace experiment;
    from_constructor = {version, target, static_cast<const void* const*>(host_table), static_cast<const Image*>(image)};
    __real_GOMP_offload_register_ver(version, host_table, target, image);
}

extern "C" void __wrap_GOMP_target_ext(int device, experiment::HostFunction function, std::size_t count, void** host,
                                       std::size_t* sizes, unsigned short* kinds, unsigned flags, void** depend,
                                       void** arguments)
{
    using namespace experiment;
    if (noting) {
        region = number_of(function);
        return;
    }
    const Way& way = current_way;
    if (way.by_libgomp) {
        __real_GOMP_target_ext(device, function, count, host, sizes, kinds, flags, depend, arguments);
        return;
    }
    region = number_of(function);
    const Kernels& kernels = *current_kernels;
    if (region < 0 || region >= static_cast<int>(kernels.functions.size()) || kernels.functions[region] == nullptr) {
        status = unknown_region;
        return;
    }
    int teams = 1, warps = 8; // libgomp's, where the region has no clause
    read_arguments(arguments, teams, warps);
    Address variables = 0;
    status = write_variables(*way.lane, way.variables, *kernels.driver, count, host, sizes, kinds, variables);
    if (status == 0) {
        status = launch(*kernels.driver, kernels.functions[region], way, teams, warps, variables);
    }
}
