#include "options.hpp"

#include "block_mask.hpp"
#include "sized.hpp"

#include "device_policy.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <fmt/format.h>
#include <string>
#include <string_view>

namespace flashomp::capi {

namespace {

// Sizes do not change any more once a version with them is released: a grown struct adds one.
constexpr std::array<std::size_t, 5> sizes_of_options{216, 264, 280, 360, 376};
static_assert(sizes_of_options.back() == sizeof(flashomp_options));
constexpr Versions<flashomp_options> options_versions{"flashomp_options", sizes_of_options};

constexpr std::array<std::size_t, 1> sizes_of_allocator{32};
static_assert(sizes_of_allocator.back() == sizeof(flashomp_allocator));
constexpr Versions<flashomp_allocator> allocator_versions{"flashomp_allocator", sizes_of_allocator};

/// The enumerator with this number, where the enumerators of both languages are numbered alike from 0 to `last`.
template <class Enum>
Enum enumerator(const char* name, std::int32_t value, Enum last, std::string_view allowed)
{
    if (value < 0 || value > static_cast<std::int32_t>(last)) {
        throw Error(fmt::format("{} was {}; allowed are: {}.", name, value, allowed));
    }
    return static_cast<Enum>(value);
}

static_assert(static_cast<int>(Causal::top_left) == FLASHOMP_CAUSAL_TOP_LEFT &&
              static_cast<int>(Causal::bottom_right) == FLASHOMP_CAUSAL_BOTTOM_RIGHT);
static_assert(static_cast<int>(Machine::host) == FLASHOMP_MACHINE_HOST &&
              static_cast<int>(Machine::plain) == FLASHOMP_MACHINE_PLAIN &&
              static_cast<int>(Machine::tensor) == FLASHOMP_MACHINE_TENSOR &&
              static_cast<int>(Machine::hopper) == FLASHOMP_MACHINE_HOPPER);
static_assert(static_cast<int>(Device::Kind::host) == FLASHOMP_DEVICE_HOST &&
              static_cast<int>(Device::Kind::gpu) == FLASHOMP_DEVICE_GPU);

Positions positions_of(const flashomp_positions& given)
{
    return {given.whole, {{{given.first[0], given.count[0]}, {given.first[1], given.count[1]}}}};
}

/// Where the call runs: what was chosen, or the GPU that has its tensors.
Device device_of(const flashomp_options& given, const Options& options, const Views& views)
{
    Device device{enumerator("device_choice", given.device_choice, Device::Kind::gpu, "0 (auto), 1 (host), 2 (gpu)"),
                  given.device_index};
    if (views.name_on_gpu() == nullptr) {
        return device;
    }
    if (device.kind == Device::Kind::gpu && device.index != views.gpu()) {
        throw Error(fmt::format("{} is on GPU {}, but device_index was {}; they must be the same GPU.",
                                views.name_on_gpu(), views.gpu(), device.index));
    }
    if (device.kind != Device::Kind::automatic) {
        return device;
    }
    const bool is_on_host = options.backend == Backend::reference || options.machine == Machine::host;
    if (is_on_host) {
        throw Error(fmt::format("{} is on GPU {}, but {} runs on the host; allowed there is host memory.",
                                views.name_on_gpu(), views.gpu(),
                                options.backend == Backend::reference ? "backend reference" : "machine host"));
    }
    if (const std::size_t found = device_facts(options.backend).size();
        static_cast<std::size_t>(views.gpu()) >= found) {
        throw Error(fmt::format("{} is on GPU {}, but {}; allowed is memory of {}.", views.name_on_gpu(), views.gpu(),
                                found == 0 ? why_no_device() : fmt::format("only {} GPU(s) were found", found),
                                found == 0 ? "the host" : "the host and of these GPUs"));
    }
    return {Device::Kind::gpu, views.gpu()};
}

} // namespace

bool boolean(const char* name, int value)
{
    if (value != 0 && value != 1) {
        throw Error(fmt::format("{} was {}; it must be 0 or 1.", name, value));
    }
    return value == 1;
}

flashomp_options default_options()
{
    auto defaults = default_of<flashomp_options>();
    defaults.window_left = defaults.window_right = -1;
    return defaults;
}

flashomp_options read_options(const flashomp_options* given)
{
    return given == nullptr ? default_options() : read_struct("options", given, options_versions, default_options());
}

Backend backend_of(std::int32_t given)
{
    static_assert(static_cast<int>(Backend::openmp) == FLASHOMP_BACKEND_OPENMP &&
                  static_cast<int>(Backend::reference) == FLASHOMP_BACKEND_REFERENCE &&
                  static_cast<int>(Backend::cuda) == FLASHOMP_BACKEND_CUDA);
    return enumerator("backend", given, Backend::cuda, "0 (auto), 1 (openmp), 2 (reference), 3 (cuda)");
}

bool managed_is_gpus(const flashomp_options& given)
{
    return given.backend == FLASHOMP_BACKEND_CUDA || given.has_stream != 0;
}

Options options_of(const flashomp_options& given, Views& views)
{
    Options options;
    if (boolean("has_scale", given.has_scale)) {
        options.scale = given.scale;
    }
    options.causal =
        enumerator("causal", given.causal, Causal::bottom_right, "0 (none), 1 (top left), 2 (bottom right)");
    options.window = {given.window_left, given.window_right};
    options.softcap = given.softcap;
    options.alibi_slopes = views("alibi_slopes", given.alibi_slopes);
    options.bias = views("bias", given.bias);
    options.key_padding_mask = views("key_padding_mask", given.key_padding_mask);
    options.cu_seqlens_q = views("cu_seqlens_q", given.cu_seqlens_q);
    options.cu_seqlens_k = views("cu_seqlens_k", given.cu_seqlens_k);
    options.sink = views("sink", given.sink);
    options.q_scale = views("q_scale", given.q_scale);
    options.k_scale = views("k_scale", given.k_scale);
    options.v_scale = views("v_scale", given.v_scale);
    options.cache_seqlens = views("cache_seqlens", given.cache_seqlens);
    options.cache_batch_index = views("cache_batch_index", given.cache_batch_index);
    options.block_table = views("block_table", given.block_table);
    options.kv_indptr = views("kv_indptr", given.kv_indptr);
    options.kv_indices = views("kv_indices", given.kv_indices);
    options.kv_last_page_len = views("kv_last_page_len", given.kv_last_page_len);
    options.mask = views("mask", given.mask);
    options.block_mask = block_mask_of(given.block_mask);
    options.positions_q = positions_of(given.positions_q);
    options.positions_k = positions_of(given.positions_k);
    options.first_sequence = given.first_sequence;
    options.first_head = given.first_head;
    options.dropout = {given.dropout_probability, given.dropout_seed, given.dropout_offset};
    options.backend = backend_of(given.backend);
    options.machine =
        enumerator("machine", given.machine, Machine::hopper, "0 (auto), 1 (host), 2 (plain), 3 (tensor), 4 (hopper)");
    options.threads = given.threads;
    if (boolean("has_stream", given.has_stream)) {
        options.stream = given.stream;
    }
    options.tiling = {given.tile_resident_rows, given.tile_stream_rows, given.tile_teams, given.tile_team_threads,
                      boolean("tile_global_memory", given.tile_global_memory)};
    options.device = device_of(given, options, views);
    return options;
}

std::optional<flashomp_allocator> allocator_of(const flashomp_options* options)
{
    const flashomp_options given = read_options(options);
    if (given.allocator == nullptr) {
        return {};
    }
    const flashomp_allocator allocator =
        read_struct("allocator", given.allocator, allocator_versions, default_of<flashomp_allocator>());
    if (allocator.allocate == nullptr || allocator.release == nullptr) {
        throw Error(fmt::format("allocator->{} was null; both functions must be given.",
                                allocator.allocate == nullptr ? "allocate" : "release"));
    }
    if (given.backend == FLASHOMP_BACKEND_REFERENCE) {
        throw Error("allocator was given with backend reference, which takes its memory from the C++ library; allowed "
                    "are auto, openmp and cuda.");
    }
    return allocator;
}

} // namespace flashomp::capi
