// What the steps share: a call's arrays on the device, launches of our own, and the clock.
#pragma once

#include "regions.hpp"
#include "steps.hpp"

#include <chrono>
#include <functional>
#include <string>
#include <vector>

namespace experiment {

inline constexpr int n = 5003; // not a multiple of any number of warps
inline constexpr int out_words = 4096;
inline constexpr std::size_t y_at = 32768, out_at = 65536, call_at = 131072, memory_bytes = 262144;
static_assert(n * sizeof(float) <= y_at && out_at + out_words * 8 <= call_at);
using Clock = std::chrono::steady_clock;

double microseconds_since(Clock::time_point start);

float x_of(int i);

/// Poisons or clears the outputs of call 0 or 1, writes its numbers; returns where they lie.
Call* write_call(Bench& bench, int index, unsigned char fill, std::uint32_t words, std::int64_t nanoseconds);

/// `count` values from byte `at` of a call's memory, after all work of the device.
template <class T>
std::vector<T> read_back(Bench& bench, int index, std::size_t at, std::size_t count)
{
    std::vector<T> values(count);
    bench.driver.ctx_synchronize();
    bench.driver.to_host(values.data(), bench.memory + static_cast<Address>(index) * memory_bytes + at,
                         count * sizeof(T));
    return values;
}

/// By cuLaunchKernel, on a lane's stream, waiting.
Way past(Bench& bench, int lane = 0);

/// Median of up to `calls` calls, for 1.5 seconds at most; -1 where a call fails.
double median_time(const std::function<bool()>& call, int calls = 200);

/// "one.w8", "all.w4": teams and warps in a key.
std::string shape(int teams, int warps);

/// Raises the function's bound for dynamic shared memory as far as it goes, then uses four sizes.
void raise_pool(Bench& bench, const std::string& key, Function function,
                const std::function<Status(Call*, unsigned)>& run);

} // namespace experiment
