#include "step.hpp"

#include "report.hpp"

#include <algorithm>

namespace experiment {

bool prepare(Bench& bench)
{
    Status status = bench.driver.mem_alloc(&bench.memory, 2 * memory_bytes);
    for (Lane& lane : bench.lanes) {
        const std::size_t stacks = static_cast<std::size_t>(bench.multiprocessors) * 8 * 128 * 1024;
        status = status != 0 ? status : make_lane(bench.driver, stacks, lane);
    }
    return holds("memory.lanes", status == 0, status == 0 ? "" : name_of(bench.driver, status));
}

double microseconds_since(Clock::time_point start)
{
    return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

float x_of(int i)
{
    return static_cast<float>(i % 64) * 0.25F - 3;
}

Call* write_call(Bench& bench, int index, unsigned char fill, std::uint32_t words, std::int64_t nanoseconds)
{
    const Address m = bench.memory + static_cast<Address>(index) * memory_bytes;
    std::vector<float> x(n);
    for (int i = 0; i < n; ++i) {
        x[static_cast<std::size_t>(i)] = x_of(i);
    }
    const Call call{reinterpret_cast<float*>(m),
                    reinterpret_cast<float*>(m + y_at),
                    reinterpret_cast<std::uint64_t*>(m + out_at),
                    nanoseconds,
                    0.5F,
                    n,
                    words,
                    77U + words};
    const Driver& driver = bench.driver;
    Status status = driver.set_bytes(m, fill, call_at);
    status = status != 0 ? status : driver.to_device(m, x.data(), n * sizeof(float));
    status = status != 0 ? status : driver.to_device(m + call_at, &call, sizeof call);
    status = status != 0 ? status : driver.ctx_synchronize(); // our streams do not wait for the null stream
    if (status != 0) {
        holds("memory", false, name_of(driver, status));
    }
    return reinterpret_cast<Call*>(m + call_at);
}

Way past(Bench& bench, int lane)
{
    Way way;
    way.by_libgomp = false;
    way.lane = &bench.lanes[lane];
    return way;
}

double median_time(const std::function<bool()>& call, int calls)
{
    std::vector<double> times;
    const auto begin = Clock::now();
    for (int i = 0; i < calls + 10 && microseconds_since(begin) < 1.5e6; ++i) {
        const auto start = Clock::now();
        if (!call()) {
            return -1;
        }
        times.push_back(microseconds_since(start));
    }
    times.erase(times.begin(),
                times.begin() + static_cast<std::ptrdiff_t>(std::min<std::size_t>(10, times.size() - 1)));
    std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2), times.end());
    return times[times.size() / 2];
}

std::string shape(int teams, int warps)
{
    return text("%s.w%d", teams == 1 ? "one" : "all", warps);
}

void check_results(Bench& bench, const char* key, bool small_stacks)
{
    const int teams = bench.multiprocessors;
    struct Result {
        std::vector<float> y;
        std::vector<std::uint64_t> out;
    };
    const auto run = [&](Way way, int warps, bool with_runtime) {
        Call* const there = write_call(bench, 0, 0xff, 0, 0);
        go(&bench.kernels, way);
        if (with_runtime) {
            runtime<8>(teams, 0, there);
        } else if (warps == 8) {
            affine<8>(teams, 0, there);
        } else {
            affine<4>(teams, 0, there);
        }
        return Result{read_back<float>(bench, 0, y_at, n), read_back<std::uint64_t>(bench, 0, out_at, out_words)};
    };
    const auto wrong = [&](const Result& result, int warps, float sign) {
        int count = 0;
        for (int i = 0; i < n; ++i) {
            count += result.y[static_cast<std::size_t>(i)] == 0.5F * x_of(i) + sign * static_cast<float>(i) ? 0 : 1;
        }
        for (int i = 0; i < out_words; ++i) { // nothing behind the last warp
            const auto block = static_cast<std::uint64_t>(i / warps), warp = static_cast<std::uint64_t>(i % warps);
            const std::uint64_t expected =
                i < teams * warps ? (block << 32) + (warp << 16) + static_cast<unsigned>(warps) : ~std::uint64_t{0};
            count += result.out[static_cast<std::size_t>(i)] == expected ? 0 : 1;
        }
        return count;
    };
    for (const int variant : {4, 8, 0}) {
        const bool with_runtime = variant == 0;
        const int warps = with_runtime ? 8 : variant;
        const std::string name = text("%s.results.%s", key,
                                      with_runtime ? "runtime.w8"
                                      : warps == 8 ? "affine.w8"
                                                   : "affine.w4");
        const float sign = with_runtime ? -1 : 1;
        if (bench.has_libgomp && !small_stacks) {
            const int count = wrong(run(Way{}, warps, with_runtime), warps, sign);
            holds(name + ".libgomp", count == 0, text("%d of %d numbers wrong", count, n + out_words));
        }
        for (const Variables how : {Variables::copied, Variables::pinned}) {
            Way way = past(bench);
            way.variables = how;
            way.stack_bytes = small_stacks ? 16 * 1024 : way.stack_bytes;
            const int count = wrong(run(way, warps, with_runtime), warps, sign);
            holds(name + (how == Variables::copied ? ".past.copied" : ".past.pinned") +
                      (small_stacks ? ".small_stacks" : ""),
                  count == 0 && last_status() == 0,
                  text("%d of %d numbers wrong; status %d", count, n + out_words, last_status()));
        }
    }
}

/// Fills and reads `bytes` of dynamic shared memory by `run`, and checks the sums.
static void check_pool(Bench& bench, const std::string& key, int bytes, const std::function<Status(Call*)>& run)
{
    const int teams = bench.multiprocessors;
    const auto words = static_cast<std::uint32_t>(bytes / 4);
    Call* const there = write_call(bench, 0, 0, words, 0);
    const Status status = run(there);
    const auto out = read_back<std::uint64_t>(bench, 0, out_at, out_words);
    int good = 0;
    for (int team = 0; team < teams; ++team) {
        std::uint64_t sum = 0;
        for (std::uint32_t i = 0; i < words; ++i) {
            sum += pool_word(i, static_cast<std::uint32_t>(team), 77U + words);
        }
        const auto at = static_cast<std::size_t>(2 * team);
        good += out[at] == sum && out[at + 1] == 0 ? 1 : 0;
    }
    holds(key, status == 0 && good == teams,
          text("%d B: status %d (%s), %d of %d teams read what they wrote", bytes, status,
               status > 0 ? name_of(bench.driver, status) : "", good, teams));
}

void raise_pool(Bench& bench, const std::string& key, Function function,
                const std::function<Status(Call*, unsigned)>& run)
{
    const Driver& driver = bench.driver;
    int optin = 0, used = 0, reserved = 0;
    driver.device_attribute(&optin, device_shared_optin, 0);
    driver.device_attribute(&reserved, device_shared_reserved, 0);
    if (driver.function_attribute(&used, attribute_static_shared, function) != 0) {
        holds(key + ".function", false, "the driver does not know the kernel");
        return;
    }
    int accepted = 0;
    for (int low = 0, high = optin; low <= high;) {
        const int middle = low + (high - low) / 2;
        if (driver.set_function_attribute(function, attribute_dynamic_shared, middle) == 0) {
            accepted = middle;
            low = middle + 1;
        } else {
            high = middle - 1;
        }
    }
    number(key + ".accepted", accepted, "B", text("dynamic, beside %d B static; a block has %d B", used, optin));
    // nvlink's number for sm_90 includes the bytes that the driver reserves, which are not of the block's 227 KB; our
    // static arrays have less than these. The array is aligned to 1024 bytes, so what they leave is rounded down to
    // that.
    const int ours = used > reserved ? used - reserved : used;
    const int most = std::min(accepted, optin - (ours + 1023) / 1024 * 1024) / 1024 * 1024;
    for (const int bytes : {40 * 1024, 96 * 1024, 160 * 1024, most}) {
        const std::string name = key + (bytes == most ? ".all" : text(".kb%d", bytes / 1024));
        const Status status = driver.set_function_attribute(function, attribute_dynamic_shared, bytes);
        if (status != 0) {
            holds(name, false, text("cuFuncSetAttribute(%d B): %s", bytes, name_of(driver, status)));
            continue;
        }
        check_pool(bench, name, bytes, [&](Call* there) { return run(there, static_cast<unsigned>(bytes)); });
    }
}

void use_pool(Bench& bench, const char* key)
{
    only_note(true);
    pool<8>(1, 0, nullptr);
    only_note(false);
    const int region = last_region();
    if (region < 0 || bench.kernels.functions[static_cast<std::size_t>(region)] == nullptr) {
        holds(text("%s.pool", key), false, "the region has no kernel");
        return;
    }
    raise_pool(bench, text("%s.pool", key), bench.kernels.functions[static_cast<std::size_t>(region)],
               [&](Call* there, unsigned bytes) {
                   Way way = past(bench);
                   way.dynamic_bytes = bytes;
                   go(&bench.kernels, way);
                   pool<8>(bench.multiprocessors, 0, there);
                   return last_status();
               });
}

} // namespace experiment
