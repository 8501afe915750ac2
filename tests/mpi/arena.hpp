// The memory of a device that is none.
#pragma once

#include "messages.hpp"

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <new>
#include <sys/mman.h>

namespace flashomp::testing {

/// The device's memory: nobody can read or write it but while a Door is open, or always where MPI is to reach it.
class Arena {
public:
    Arena()
        : memory_(static_cast<std::byte*>(
              mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)))
    {
        if (memory_ == MAP_FAILED) { // NOLINT(performance-no-int-to-ptr): the system's macro
            std::abort();
        }
        free_[memory_] = size;
        if (mpi::mpi_takes_device_memory()) {
            open();
        }
    }

    void open()
    {
        if (doors_++ == 0) {
            protect(PROT_READ | PROT_WRITE);
        }
    }
    void close()
    {
        if (--doors_ == 0) {
            protect(PROT_NONE);
        }
    }

    std::byte* take(std::size_t bytes)
    {
        bytes = (bytes + 63) / 64 * 64;
        for (auto block = free_.begin(); block != free_.end(); ++block) {
            if (block->second >= bytes) {
                std::byte* const found = block->first;
                const std::size_t left = block->second - bytes;
                free_.erase(block);
                if (left > 0) {
                    free_[found + bytes] = left;
                }
                taken_[found] = bytes;
                poison(found, bytes);
                return found;
            }
        }
        throw std::bad_alloc();
    }

    void give_back(std::byte* block)
    {
        const std::size_t bytes = taken_.at(block);
        taken_.erase(block);
        poison(block, bytes);
        auto here = free_.emplace(block, bytes).first;
        if (const auto next = std::next(here); next != free_.end() && block + bytes == next->first) {
            here->second += next->second;
            free_.erase(next);
        }
        if (here != free_.begin()) {
            if (const auto before = std::prev(here); before->first + before->second == block) {
                before->second += here->second;
                free_.erase(here);
            }
        }
    }

private:
    static constexpr std::size_t size = std::size_t{256} << 20;

    void protect(int how)
    {
        if (mprotect(memory_, size, how) != 0) {
            std::abort();
        }
    }
    void poison(std::byte* block, std::size_t bytes)
    {
        open();
        std::memset(block, 0xFF, bytes);
        close();
    }

    std::byte* memory_;
    std::map<std::byte*, std::size_t> free_, taken_;
    int doors_ = 0;
};

inline Arena& arena()
{
    static Arena& instance = *new Arena;
    return instance;
}

class Door {
public:
    Door() { arena().open(); }
    ~Door() { arena().close(); }
    Door(const Door&) = delete;
    Door& operator=(const Door&) = delete;
};

} // namespace flashomp::testing
