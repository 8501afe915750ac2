#include "memory.hpp"

#include <algorithm>
#include <fstream>
#include <malloc.h>
#include <string>

namespace flashomp::bench {

namespace {

/// "VmRSS:     1234 kB" of a file in /proc, in bytes.
std::optional<std::int64_t> field(const char* file, const std::string& name)
{
    std::ifstream lines(file);
    for (std::string word; lines >> word;) {
        std::int64_t kilobytes = 0;
        if (word == name && lines >> kilobytes) {
            return kilobytes * 1024;
        }
    }
    return std::nullopt;
}

std::optional<std::int64_t> number_in(const char* file)
{
    std::ifstream text(file);
    std::int64_t value = 0;
    return text >> value ? std::optional(value) : std::nullopt; // "max" is no number
}

} // namespace

void make_allocations_visible()
{
    constexpr int threshold = 1 << 16;    // a fixed one: by itself it would grow with the sizes freed
    mallopt(M_MMAP_THRESHOLD, threshold); // NOLINT(concurrency-mt-unsafe): before any thread is started
}

ReusedMemory::ReusedMemory()
{
    constexpr int most = 32 << 20;        // the largest threshold that glibc takes
    mallopt(M_MMAP_THRESHOLD, most);      // NOLINT(concurrency-mt-unsafe): glibc's takes its own lock
    mallopt(M_TRIM_THRESHOLD, 16 * most); // NOLINT(concurrency-mt-unsafe): so too
}

ReusedMemory::~ReusedMemory()
{
    constexpr int usual = 128 << 10;
    mallopt(M_TRIM_THRESHOLD, usual); // NOLINT(concurrency-mt-unsafe): as above
    make_allocations_visible();
    malloc_trim(0);
}

ResidentPeak::ResidentPeak()
{
    malloc_trim(0); // what was freed and is still resident would be taken again unseen
    std::ofstream clear("/proc/self/clear_refs");
    clear << "5" << std::flush; // the peak starts anew (man 5 proc)
    if (clear) {
        start_ = field("/proc/self/status", "VmRSS:");
    }
}

std::optional<std::int64_t> ResidentPeak::bytes() const
{
    const std::optional<std::int64_t> peak = field("/proc/self/status", "VmHWM:");
    return start_ && peak ? std::optional(std::max<std::int64_t>(0, *peak - *start_)) : std::nullopt;
}

std::optional<std::int64_t> available_memory()
{
    std::optional<std::int64_t> available = field("/proc/meminfo", "MemAvailable:");
    const std::optional<std::int64_t> limit = number_in("/sys/fs/cgroup/memory.max");
    const std::optional<std::int64_t> used = number_in("/sys/fs/cgroup/memory.current");
    if (limit && used) {
        available = std::min(available.value_or(*limit), std::max<std::int64_t>(0, *limit - *used));
    }
    return available;
}

} // namespace flashomp::bench
