// Calls of flashomp::mpi on the tensors that the tests have: in host memory, or copied to a device and back.
#pragma once

#include "flashomp/mpi.hpp"

#include <cstdint>

namespace flashomp::testing {

/// What FLASHOMP_TEST_DEVICE asks for: nothing, "fake" (fake_device.hpp) or "gpu", the rank's.
enum class TestDevice : std::uint8_t { none, fake, gpu };
TestDevice test_device();

/// A device's memory.
class DeviceMemory {
public:
    DeviceMemory() = default;
    virtual ~DeviceMemory() = default;
    DeviceMemory(const DeviceMemory&) = delete;
    DeviceMemory& operator=(const DeviceMemory&) = delete;
    virtual void* take(std::int64_t bytes) = 0;
    virtual void give_back(void* block) = 0;
    virtual void put(void* there, const void* host, std::int64_t bytes) = 0;
    virtual void get(void* host, const void* there, std::int64_t bytes) = 0;
};

/// The functions of flashomp::mpi. With a device their tensors are copied there, with gaps between rows, and back; a
/// tensor that is said to be in device memory stays on the host then.
mpi::Report sharded_forward(const ForwardArgs& args, const Options& options, const mpi::Sharding& sharding = {});
mpi::Report sharded_backward(const BackwardArgs& args, const Options& options, const mpi::Sharding& sharding = {});

} // namespace flashomp::testing
