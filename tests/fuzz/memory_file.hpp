// A file of given bytes that never touches the disk, for readers that take paths.
#pragma once

#include "property.hpp"

#include <filesystem>
#include <string>

#include <sys/mman.h>
#include <unistd.h>

namespace flashomp::fuzz {

class MemoryFile {
public:
    MemoryFile(const std::uint8_t* data, std::size_t size) : descriptor_(::memfd_create("fuzz", MFD_CLOEXEC))
    {
        if (descriptor_ < 0 || ::write(descriptor_, data, size) != static_cast<::ssize_t>(size)) {
            violated("this machine has files in memory", "none");
        }
    }
    ~MemoryFile() { ::close(descriptor_); }
    MemoryFile(const MemoryFile&) = delete;
    MemoryFile& operator=(const MemoryFile&) = delete;

    [[nodiscard]] std::filesystem::path path() const { return "/proc/self/fd/" + std::to_string(descriptor_); }

private:
    int descriptor_;
};

} // namespace flashomp::fuzz
