// Short measurements of this CPU. GCC vector types, compiled for three instruction sets in one file.
#include "peaks.hpp"

#include "host_threads.hpp"
#include "plan.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <fmt/format.h>
#include <functional>
#include <memory>
#include <omp.h>
#include <vector>

namespace flashomp::cost {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start)
{
    return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Chains of dependent multiply-adds: more than latency times units of any CPU so far, few enough for the registers.
constexpr int chains = 12;

typedef float Float4 __attribute__((vector_size(16)));  // NOLINT(modernize-use-using)
typedef float Float8 __attribute__((vector_size(32)));  // NOLINT(modernize-use-using)
typedef float Float16 __attribute__((vector_size(64))); // NOLINT(modernize-use-using)

/// `rounds` multiply-adds in each chain of vectors; returns FLOPs. The result is stored through `sink`, so that no
/// compiler leaves the work out.
template <class Vector>
[[gnu::always_inline]] inline double multiply_add(std::int64_t rounds, float* sink)
{
    constexpr int lanes = sizeof(Vector) / sizeof(float);
    Vector sums[chains];
    float first = 0.0F;
    for (Vector& sum : sums) {
        sum = Vector{} + first;
        first += 1.0F;
    }
    const Vector factor = Vector{} + 0.999F;
    const Vector term = Vector{} + 0.001F;
    for (std::int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 12
        for (Vector& sum : sums) {
            sum = sum * factor + term;
        }
    }
    float total = 0.0F;
    for (const Vector& sum : sums) {
        for (int lane = 0; lane < lanes; ++lane) {
            total += sum[lane];
        }
    }
    *sink = total;
    return 2.0 * lanes * chains * static_cast<double>(rounds);
}

double baseline(std::int64_t rounds, float* sink)
{
    return multiply_add<Float4>(rounds, sink);
}

#if defined(__x86_64__)
__attribute__((target("avx2,fma"))) double avx2(std::int64_t rounds, float* sink)
{
    return multiply_add<Float8>(rounds, sink);
}

__attribute__((target("avx512f"))) double avx512(std::int64_t rounds, float* sink)
{
    return multiply_add<Float16>(rounds, sink);
}
#endif

struct Kernel {
    std::function<double(std::int64_t, float*)> run;
    std::string name;
};

/// The host machine's own matrix instructions where it multiplies with them, else vectors of its width.
Kernel best_kernel(const offload::HostIsa& isa, DType dtype)
{
    if (isa.products != nullptr) {
        return {[&isa, element = kernel_element(dtype)](std::int64_t rounds, float*) {
                    return isa.products(element, rounds);
                },
                fmt::format("{} products on {}", name_of(dtype), isa.name)};
    }
#if defined(__x86_64__)
    if (isa.lanes >= 16 && __builtin_cpu_supports("avx512f")) {
        return {avx512, "float32 multiply-adds, AVX-512"};
    }
    if (isa.lanes >= 8 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        return {avx2, "float32 multiply-adds, AVX2"};
    }
#endif
    return {baseline, "float32 multiply-adds, the baseline's vectors"};
}

/// FLOP/s of all threads: the sum of each one's best try, so that what else the machine does counts little.
double measure_flops(const Kernel& kernel, int threads)
{
    constexpr std::int64_t rounds = 200'000;
    constexpr int attempts = 20;
    double sum = 0;
#pragma omp parallel num_threads(threads) reduction(+ : sum)
    {
        double best = 0;
        volatile float keep = 0.0F;
        for (int attempt = 0; attempt < attempts; ++attempt) {
            float result = 0.0F;
            const auto start = Clock::now();
            const double flops = kernel.run(rounds, &result);
            best = std::max(best, flops / seconds_since(start));
            keep = result;
        }
        static_cast<void>(keep);
        sum += best;
    }
    return sum;
}

constexpr std::int64_t copied_bytes = std::int64_t{64} << 20;

/// Bytes/s of a copy of `bytes` that all threads share, read and written bytes counted, the best of a few tries.
double measure_bandwidth(int threads, std::int64_t bytes = copied_bytes)
{
    const auto count = static_cast<std::size_t>(bytes);
    const auto from = std::make_unique<char[]>(count); // NOLINT(modernize-avoid-c-arrays)
    const auto to = std::make_unique<char[]>(count);   // NOLINT(modernize-avoid-c-arrays)
    double best = 0;
    for (int attempt = 0; attempt < 5; ++attempt) {
        const auto start = Clock::now();
#pragma omp parallel num_threads(threads)
        {
            const auto parts = static_cast<std::size_t>(omp_get_num_threads());
            const auto part = static_cast<std::size_t>(omp_get_thread_num());
            const std::size_t first = count * part / parts;
            std::memcpy(to.get() + first, from.get() + first, count * (part + 1) / parts - first);
        }
        best = std::max(best, 2.0 * static_cast<double>(bytes) / seconds_since(start));
    }
    return best;
}

constexpr std::int64_t read_bytes = std::int64_t{256} << 20; ///< of 64 MiB a shared cache of 32 keeps a part

/// Bytes/s of a sum over memory that all threads share, the best of a few tries: a reader writes nothing.
double measure_reads(int threads)
{
    const std::vector<std::uint64_t> from(static_cast<std::size_t>(read_bytes) / sizeof(std::uint64_t), 1);
    double best = 0;
    volatile std::uint64_t keep = 0;
    for (int attempt = 0; attempt < 5; ++attempt) {
        std::uint64_t sum = 0;
        const auto start = Clock::now();
#pragma omp parallel for simd schedule(static) num_threads(threads) reduction(+ : sum)
        for (std::size_t i = 0; i < from.size(); ++i) { // NOLINT(modernize-loop-convert): not one OpenMP knows
            sum += from[i];
        }
        best = std::max(best, static_cast<double>(read_bytes) / seconds_since(start));
        keep = sum;
    }
    static_cast<void>(keep);
    return best;
}

} // namespace

double copy_bandwidth(int asked, double moved)
{
    return measure_bandwidth(host_threads(asked), std::max(copied_bytes, static_cast<std::int64_t>(moved / 2)));
}

double read_bandwidth(int asked)
{
    return measure_reads(host_threads(asked));
}

Peaks host_peaks(int asked, const offload::HostIsa& isa, DType dtype)
{
    const Kernel kernel = best_kernel(isa, dtype);
    Peaks peaks;
    const int threads = host_threads(asked);
    peaks.flops = measure_flops(kernel, threads);
    peaks.bandwidth = measure_bandwidth(threads);
    const std::string where = fmt::format("{} thread{}", threads, threads == 1 ? "" : "s");
    peaks.flops_source = fmt::format("measured: {}, {}", kernel.name, where);
    peaks.bandwidth_source = fmt::format("measured: copy of {} MiB, {}", copied_bytes >> 20, where);
    return peaks;
}

} // namespace flashomp::cost
