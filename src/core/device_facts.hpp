// What is known of a GPU: read from its driver once, or written down for one that is not here.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace flashomp {

/// Units that multiply matrices. Each kind has those before it, too.
enum class MatrixUnits : std::uint8_t {
    none,
    warp,     ///< products of one warp (mma.sync): from compute capability 8.0
    warpgroup ///< products of four warps, and the copy engine (wgmma, TMA): 9.0 alone runs code for sm_90a
};

/// 0 and empty: unknown.
struct DeviceFacts {
    std::string name;         ///< as its driver has it
    int major = 0, minor = 0; ///< compute capability
    int multiprocessors = 0;
    int registers = 65536;         ///< 32-bit registers of a multiprocessor
    std::int64_t shared_bytes = 0; ///< shared memory of a multiprocessor
    std::int64_t l2_bytes = 0;
    MatrixUnits matrix_units = MatrixUnits::none;
    std::string driver = {};        ///< version of its API, for example "13.0"
    bool shares_cuda_memory = true; ///< false: OpenMP works in another CUDA context than the primary one

    /// "9.0"; empty where it is unknown.
    [[nodiscard]] std::string capability() const;
};

[[nodiscard]] MatrixUnits matrix_units_of(int major, int minor);

/// A GPU that can be planned for without being there.
struct KnownDevice {
    std::string_view key; ///< as in `plan --device`
    DeviceFacts facts;
};

/// From the CUDA C++ Programming Guide, "Technical Specifications per Compute Capability", and NVIDIA's architecture
/// white papers.
[[nodiscard]] const std::vector<KnownDevice>& known_devices();

/// Null where the table does not have the key.
[[nodiscard]] const KnownDevice* find_known_device(std::string_view key);

/// All keys in the order of the table: "a100, l40s" and so on.
[[nodiscard]] std::string known_device_keys();

} // namespace flashomp
