#include "timing.hpp"

#include "host_isa.hpp"

#include <algorithm>
#include <cmath>
#include <ctime>
#include <stdexcept>

#include <benchmark/benchmark.h>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace flashomp::bench {

namespace {

/// Keeps the time of every repetition.
class Collector : public benchmark::BenchmarkReporter {
public:
    bool ReportContext(const Context& /*context*/) override { return true; }

    void ReportRuns(const std::vector<Run>& report) override
    {
        for (const Run& run : report) {
            if (run.error_occurred) {
                throw std::runtime_error(run.error_message);
            }
            if (run.run_type == Run::RT_Iteration) {
                seconds.push_back(run.GetAdjustedRealTime());
            }
        }
    }

    std::vector<double> seconds;
};

} // namespace

double median(std::vector<double> values)
{
    std::sort(values.begin(), values.end());
    const std::size_t middle = values.size() / 2;
    return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

Timing time_calls(const std::string& name, const std::function<void()>& call, double first_seconds,
                  const TimingSettings& settings)
{
    for (int i = 0; i < settings.warmup; ++i) {
        call();
    }
    const double once = std::max(first_seconds, 1e-7);
    Timing timing;
    timing.calls = static_cast<std::int64_t>(std::clamp(std::ceil(settings.least_seconds / once), 1.0, 1e6));
    const double affordable = settings.most_seconds / (once * static_cast<double>(timing.calls));
    timing.repetitions =
        static_cast<int>(std::clamp(std::floor(affordable), 1.0, static_cast<double>(settings.repetitions)));

    benchmark::ClearRegisteredBenchmarks();
#ifndef __clang_analyzer__ // it takes what the library keeps for leaked
    benchmark::RegisterBenchmark(name.c_str(),
                                 [&](benchmark::State& state) {
                                     for ([[maybe_unused]] auto _ : state) {
                                         call();
                                     }
                                 })
        ->UseRealTime()
        ->Unit(benchmark::kSecond)
        ->Iterations(timing.calls)
        ->Repetitions(timing.repetitions);
#endif
    Collector collector;
    benchmark::RunSpecifiedBenchmarks(&collector, nullptr, ".");
    benchmark::ClearRegisteredBenchmarks();
    if (collector.seconds.empty()) {
        throw std::runtime_error("Google Benchmark did not run " + name);
    }
    timing.median = median(collector.seconds);
    timing.least = *std::min_element(collector.seconds.begin(), collector.seconds.end());
    timing.most = *std::max_element(collector.seconds.begin(), collector.seconds.end());
    return timing;
}

std::vector<std::pair<std::string, std::string>> machine_context()
{
    using Json = nlohmann::ordered_json;
    const benchmark::CPUInfo& cpu = benchmark::CPUInfo::Get();
    Json caches = Json::array();
    for (const auto& cache : cpu.caches) {
        caches.push_back(
            {{"type", cache.type}, {"level", cache.level}, {"size", cache.size}, {"num_sharing", cache.num_sharing}});
    }
    return {{"date", Json(fmt::format("{:%FT%TZ}", fmt::gmtime(std::time(nullptr)))).dump()},
            {"host_name", Json(benchmark::SystemInfo::Get().name).dump()},
            {"cpu", Json(cpu_model()).dump()},
            {"num_cpus", Json(cpu.num_cpus).dump()},
            {"mhz_per_cpu", Json(std::lround(cpu.cycles_per_second / 1e6)).dump()},
            {"caches", caches.dump()},
            {"load_avg", Json(cpu.load_avg).dump()}};
}

} // namespace flashomp::bench
