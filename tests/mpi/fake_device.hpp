// A device that is none: memory of its own, which the host cannot read outside the seam (src/mpi/site.hpp), and work
// that is put off for as long as nobody waits for it.
#pragma once

#include "device_calls.hpp"

namespace flashomp::testing {

/// Makes it the device of flashomp::mpi. Before the first call.
void install_fake_device();

/// The next piece of work fails, for this reason.
void fail_on_fake_device(const char* reason);

class FakeMemory : public DeviceMemory {
public:
    void* take(std::int64_t bytes) override;
    void give_back(void* block) override;
    void put(void* there, const void* host, std::int64_t bytes) override;
    void get(void* host, const void* there, std::int64_t bytes) override;
};

} // namespace flashomp::testing
