#include "peaks.hpp"

#include <algorithm>

namespace flashomp::cost {

const std::vector<KnownDevice>& known_devices()
{
    static const std::vector<KnownDevice> devices{
        {"h200", "NVIDIA H200", "9.0", 132, 790e12,
         "measured: bfloat16 8192^3 matrix product, PyTorch 2.11 (best of 680 to 790)", 989e12 / 2 / 3,
         "NVIDIA's data sheet, not measured: TF32 products without sparsity, three for one of float32", 4.3e12,
         "measured: copy, PyTorch 2.11"},
    };
    return devices;
}

const KnownDevice* find_device(std::string_view key_or_name)
{
    const std::vector<KnownDevice>& devices = known_devices();
    const auto found = std::find_if(devices.begin(), devices.end(), [&](const KnownDevice& device) {
        return device.key == key_or_name || device.name == key_or_name;
    });
    return found == devices.end() ? nullptr : &*found;
}

Peaks device_peaks(const KnownDevice& device, DType dtype)
{
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
