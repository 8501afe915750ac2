#include "device_facts.hpp"

#include <algorithm>

#include <fmt/format.h>

namespace flashomp {

namespace {

constexpr std::int64_t kib = 1024, mib = 1024 * kib;

DeviceFacts facts(const char* name, int major, int minor, int multiprocessors, std::int64_t shared_bytes,
                  std::int64_t l2_bytes)
{
    DeviceFacts all;
    all.name = name;
    all.major = major;
    all.minor = minor;
    all.multiprocessors = multiprocessors;
    all.shared_bytes = shared_bytes;
    all.l2_bytes = l2_bytes;
    all.matrix_units = matrix_units_of(major, minor);
    return all;
}

} // namespace

std::string DeviceFacts::capability() const
{
    return major > 0 ? fmt::format("{}.{}", major, minor) : std::string();
}

MatrixUnits matrix_units_of(int major, int minor)
{
    if (major == 9 && minor == 0) {
        return MatrixUnits::warpgroup;
    }
    return major >= 8 ? MatrixUnits::warp : MatrixUnits::none;
}

const std::vector<KnownDevice>& known_devices()
{
    // Never destroyed: a call in an atexit handler may ask.
    static const std::vector<KnownDevice>& devices = *new std::vector<KnownDevice>{
        {"a100", facts("NVIDIA A100-SXM4-80GB", 8, 0, 108, 164 * kib, 40 * mib)},
        {"l40s", facts("NVIDIA L40S", 8, 9, 142, 100 * kib, 96 * mib)},
        {"rtx4090", facts("NVIDIA GeForce RTX 4090", 8, 9, 128, 100 * kib, 72 * mib)},
        {"h100", facts("NVIDIA H100 80GB HBM3", 9, 0, 132, 228 * kib, 50 * mib)},
        {"h200", facts("NVIDIA H200", 9, 0, 132, 228 * kib, 50 * mib)},
        {"b200", facts("NVIDIA B200", 10, 0, 148, 228 * kib, 126 * mib)},
    };
    return devices;
}

const KnownDevice* find_known_device(std::string_view key)
{
    const std::vector<KnownDevice>& all = known_devices();
    const auto found =
        std::find_if(all.begin(), all.end(), [&](const KnownDevice& device) { return device.key == key; });
    return found == all.end() ? nullptr : &*found;
}

std::string known_device_keys()
{
    std::string keys;
    for (const KnownDevice& device : known_devices()) {
        keys += (keys.empty() ? "" : ", ") + std::string(device.key);
    }
    return keys;
}

} // namespace flashomp
