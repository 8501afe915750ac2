// The two speeds that bound every program: arithmetic and main memory. And where a call stands between them.
#pragma once

#include "launch/launch.hpp"

#include "flashomp/tensor.hpp"

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace flashomp::cost {

/// Speeds of one machine, with where they are from; 0 where unknown.
struct Peaks {
    double flops = 0;     ///< FLOP/s, in the type asked for
    double bandwidth = 0; ///< bytes/s of a copy, read and written bytes both counted
    std::string flops_source, bandwidth_source;
};

/// Speeds of a GPU of known_devices() (core/device_facts.hpp).
struct DeviceSpeeds {
    std::string_view key;    ///< as in --device
    double matrix_flops = 0; ///< 16-bit matrix product
    std::string_view matrix_source;
    double float32_flops = 0;
    std::string_view float32_source;
    double bandwidth = 0;
    std::string_view bandwidth_source;
};

[[nodiscard]] const std::vector<DeviceSpeeds>& device_speeds();

/// Of the GPU that its driver calls so. 0 where nobody has written them down.
[[nodiscard]] Peaks device_peaks(std::string_view name, DType dtype);

/// Times what the host machine multiplies tensors of this type with, and a copy of twice 64 MiB, on `asked` threads, or
/// as many as start: a fifth of a second. Without matrix instructions that is float32 multiply-adds, whatever the type.
[[nodiscard]] Peaks host_peaks(int asked, const offload::HostIsa& isa, DType dtype);

/// Bytes/s of a copy on `asked` threads alone that reads and writes as many bytes as a call moves, so that a large
/// cache keeps as much of both; at least the 64 MiB above. Some 20 ms for these.
[[nodiscard]] double copy_bandwidth(int asked, double moved);

/// Bytes/s of a sum over 256 MiB: what a call that only reads could have. A copy's is of as many bytes read as written.
[[nodiscard]] double read_bandwidth(int asked);

/// Where a call stands (Williams, Waterman and Patterson 2009).
struct Roofline {
    double intensity = 0; ///< FLOPs a byte
    double ridge = 0;     ///< the intensity where both speeds take as long
    bool is_memory_bound = false;
    double seconds = 0;          ///< no run with these bytes at these peaks takes less
    double attainable_flops = 0; ///< FLOP/s
};

/// Nothing where a peak is unknown.
[[nodiscard]] std::optional<Roofline> roofline(double flops, double bytes, const Peaks& peaks);

} // namespace flashomp::cost
