#include "peaks.hpp"

#include "device_facts.hpp"

#include <algorithm>

namespace flashomp::cost {

namespace {

constexpr std::string_view sheet = "NVIDIA's data sheet, not measured";
constexpr std::string_view sheet_tf32 =
    "NVIDIA's data sheet, not measured: TF32 products without sparsity, three for one of float32";

} // namespace

const std::vector<DeviceSpeeds>& device_speeds()
{
    static const std::vector<DeviceSpeeds> speeds{
        {"a100", 312e12, sheet, 156e12 / 3, sheet_tf32, 2.039e12, sheet},
        {"l40s", 362e12, sheet, 183e12 / 3, sheet_tf32, 0.864e12, sheet},
        {"rtx4090", 165.2e12, sheet, 82.6e12 / 3, sheet_tf32, 1.008e12, sheet},
        {"h100", 989e12, sheet, 989e12 / 2 / 3, sheet_tf32, 3.35e12, sheet},
        {"h200", 790e12, "measured: bfloat16 8192^3 matrix product, PyTorch 2.11 (best of 680 to 790)", 989e12 / 2 / 3,
         sheet_tf32, 4.3e12, "measured: copy, PyTorch 2.11"},
        {"b200", 2250e12, sheet, 1100e12 / 3, sheet_tf32, 8e12, sheet},
    };
    return speeds;
}

Peaks device_peaks(std::string_view name, DType dtype)
{
    const std::vector<DeviceSpeeds>& speeds = device_speeds();
    const auto found = std::find_if(speeds.begin(), speeds.end(), [&](const DeviceSpeeds& device) {
        const KnownDevice* const known = find_known_device(device.key);
        return known != nullptr && known->facts.name == name;
    });
    if (found == speeds.end()) {
        return {};
    }
    const DeviceSpeeds& device = *found;
    if (dtype == DType::float8_e4m3) {
        return {2 * device.matrix_flops, device.bandwidth,
                "twice the 16-bit products' speed; " + std::string(device.matrix_source),
                std::string(device.bandwidth_source)};
    }
    const bool matrix = dtype == DType::bfloat16 || dtype == DType::float16;
    return {matrix ? device.matrix_flops : device.float32_flops, device.bandwidth,
            std::string(matrix ? device.matrix_source : device.float32_source), std::string(device.bandwidth_source)};
}

std::optional<Roofline> roofline(double flops, double bytes, const Peaks& peaks)
{
    if (peaks.flops <= 0 || peaks.bandwidth <= 0 || bytes <= 0) {
        return std::nullopt;
    }
    Roofline line;
    line.intensity = flops / bytes;
    line.ridge = peaks.flops / peaks.bandwidth;
    line.is_memory_bound = line.intensity < line.ridge;
    line.seconds = std::max(flops / peaks.flops, bytes / peaks.bandwidth);
    line.attainable_flops = flops / line.seconds;
    return line;
}

} // namespace flashomp::cost
