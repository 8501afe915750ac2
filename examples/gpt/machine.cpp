#include "machine.hpp"

#include "host_threads.hpp"
#include "layers.hpp" // of src/cost
#include "peaks.hpp"
#include "place.hpp"

#include "flashomp/error.hpp"

#include <cerrno>
#include <fstream>
#include <malloc.h>

#include <fmt/format.h>
#include <sys/resource.h>

namespace gpt {

std::int64_t peak_resident_bytes()
{
    std::ifstream lines("/proc/self/status"); // getrusage() counts the process that started this one, too
    for (std::string word; lines >> word;) {
        std::int64_t kilobytes = 0;
        if (word == "VmHWM:" && lines >> kilobytes) {
            return kilobytes * 1024;
        }
    }
    return 0;
}

bool restart_peak_resident()
{
    malloc_trim(0); // NOLINT(concurrency-mt-unsafe): no other thread allocates between two steps
    std::ofstream references("/proc/self/clear_refs");
    references << "5" << std::flush; // proc(5): resets the peak to the current size
    return references.good();
}

void expect_place(const flashomp::Options& library)
{
    try {
        static_cast<void>(flashomp::choose_place(library));
    } catch (const flashomp::Error& error) {
        const std::string what = error.what(); // "device was 3, but …", which is an option here
        throw flashomp::Error(what.starts_with("device ") ? "--" + what : what);
    }
}

void limit_memory(std::int64_t bytes)
{
    if (bytes == 0) {
        return;
    }
    const rlimit limit = {static_cast<rlim_t>(bytes), static_cast<rlim_t>(bytes)};
    if (::setrlimit(RLIMIT_AS, &limit) != 0) {
        throw flashomp::Error(
            fmt::format("--memory-limit was {}; allowed is what `ulimit -Hv` allows, and more than 0.", bytes));
    }
}

void reuse_memory()
{
    constexpr int most = 32 << 20;        // the largest threshold that glibc takes
    mallopt(M_MMAP_THRESHOLD, most);      // NOLINT(concurrency-mt-unsafe): before any thread is started
    mallopt(M_TRIM_THRESHOLD, 16 * most); // NOLINT(concurrency-mt-unsafe): so too
}

double peak_flops(int threads)
{
    flashomp::Options options;
    options.device.kind = flashomp::Device::Kind::host;
    const flashomp::Place place = flashomp::choose_place(options);
    const auto element = flashomp::kernel_element(flashomp::DType::float32);
    const auto& isa = flashomp::offload::isa_for(*place.hardware.isa, element);
    return flashomp::cost::host_peaks(flashomp::host_threads(threads), isa, flashomp::DType::float32).flops;
}

double step_flops(const ModelShape& shape, std::int64_t batch)
{
    double weights = 0;
    const Layout layout(shape);
    for (const Place& place : layout.places()) { // the head multiplies by the table of tokens
        weights += place.is_matrix ? static_cast<double>(place.rows * place.columns) : 0;
    }
    const auto n = static_cast<double>(shape.seqlen);
    const double pairs = n * (n + 1) / 2;
    const auto tokens = static_cast<double>(batch) * n;
    return 6 * weights * tokens +
           12 * static_cast<double>(batch * shape.layers * shape.heads * shape.head_dim()) * pairs;
}

nlohmann::json predicted(const ModelShape& shape, std::int64_t batch)
{
    flashomp::cost::Shape layer;
    layer.batch = batch;
    layer.heads_q = shape.heads;
    layer.heads_kv = shape.heads_kv;
    layer.seqlen_q = layer.seqlen_k = shape.seqlen;
    layer.head_dim = layer.head_dim_v = shape.head_dim();
    layer.causal = flashomp::Causal::bottom_right;
    nlohmann::json json;
    for (const flashomp::cost::Checkpointing& way : flashomp::cost::checkpointing(layer, shape.layers)) {
        json[std::string(way.name)] = {
            {"peak_bytes", way.peak_bytes}, {"flops", way.flops}, {"extra_flops", way.extra_flops}};
    }
    return json;
}

} // namespace gpt
