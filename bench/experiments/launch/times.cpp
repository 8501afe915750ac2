#include "step.hpp"

#include "report.hpp"

#include <algorithm>

namespace experiment {

namespace {

/// Times `region` past libgomp: waiting each time, and queued, where the time is that of the call alone.
void time_past(Bench& bench, const std::string& key, const std::function<void()>& region)
{
    const auto run = [&] {
        region();
        return last_status() == 0;
    };
    for (const Variables how : {Variables::copied, Variables::pinned}) {
        Way way = past(bench);
        way.variables = how;
        const char* name = how == Variables::copied ? "copied" : "pinned";
        go(&bench.kernels, way);
        number(key + ".past.sync." + name, median_time(run), "us", text("status %d", last_status()));
        way.wait = false;
        go(&bench.kernels, way);
        const auto start = Clock::now();
        const double queue = median_time(run, 100);
        bench.driver.stream_synchronize(way.lane->stream);
        number(key + ".past.queue." + name, queue, "us",
               text("status %d; %.2f us each until all are done", last_status(), microseconds_since(start) / 110));
    }
}

} // namespace

void time_launches(Bench& bench, const char* key)
{
    const auto by_libgomp = [&](const std::string& name, const std::function<void()>& region) {
        if (bench.has_libgomp) {
            go(&bench.kernels, Way{});
            number(name + ".libgomp.sync", median_time([&] {
                       region();
                       return true;
                   }),
                   "us");
        }
        time_past(bench, name, region);
    };
    Call* const there = write_call(bench, 0, 0xff, 0, 0);
    by_libgomp(text("%s.bare", key), [] { bare(); });
    for (const int teams : {1, bench.multiprocessors}) {
        by_libgomp(text("%s.empty.", key) + shape(teams, 4), [=] { empty<4>(teams, 0); });
        by_libgomp(text("%s.empty.", key) + shape(teams, 8), [=] { empty<8>(teams, 0); });
        by_libgomp(text("%s.affine.", key) + shape(teams, 4), [=] { affine<4>(teams, 0, there); });
        by_libgomp(text("%s.affine.", key) + shape(teams, 8), [=] { affine<8>(teams, 0, there); });
    }
}

void time_floor(Bench& bench)
{
    const char* ptx = ".version 7.0\n.target sm_80\n.address_size 64\n.visible .entry nothing(.param .u64 a, .param "
                      ".u64 b, .param .u64 c)\n{\nret;\n}\n";
    Module module = nullptr;
    Function function = nullptr;
    Status status = bench.driver.module_load(&module, ptx);
    status = status != 0 ? status : bench.driver.module_function(&function, module, "nothing");
    if (!holds("floor", status == 0, status == 0 ? "a kernel that returns" : name_of(bench.driver, status))) {
        return;
    }
    for (const int teams : {1, bench.multiprocessors}) {
        Way way = past(bench);
        const auto run = [&] { return launch(bench.driver, function, way, teams, 8, 0) == 0; };
        number("floor." + shape(teams, 8) + ".sync", median_time(run), "us");
        way.wait = false;
        number("floor." + shape(teams, 8) + ".queue", median_time(run, 100), "us");
        bench.driver.stream_synchronize(way.lane->stream);
    }
}

void overlap_streams(Bench& bench, const char* key)
{
    constexpr int teams = 8;
    constexpr std::int64_t nanoseconds = 2000000;
    for (const bool two_streams : {false, true}) {
        Call* const there[2] = {write_call(bench, 0, 0, 0, nanoseconds), write_call(bench, 1, 0, 0, nanoseconds)};
        const auto start = Clock::now();
        Status status = 0;
        for (int i = 0; i < 2 && status == 0; ++i) {
            Way way = past(bench, two_streams ? i : 0);
            way.wait = false;
            go(&bench.kernels, way);
            spin<4>(teams, i, there[i]);
            status = last_status();
        }
        for (Lane& lane : bench.lanes) {
            const Status end = bench.driver.stream_synchronize(lane.stream);
            status = status != 0 ? status : end;
        }
        const double took = microseconds_since(start);
        std::uint64_t starts[2] = {}, ends[2] = {};
        for (int i = 0; i < 2; ++i) {
            const auto out = read_back<std::uint64_t>(bench, i, out_at, 2 * teams);
            starts[i] = out[0];
            ends[i] = out[1];
        }
        const double shared = static_cast<double>(static_cast<std::int64_t>(std::min(ends[0], ends[1]) -
                                                                            std::max(starts[0], starts[1]))) /
                              1000;
        const std::string name = text("%s.overlap.%s", key, two_streams ? "two_streams" : "one_stream");
        number(name + ".wall", took, "us", text("two kernels of 2000 us; status %d", status));
        number(name + ".together", shared, "us", "during which both ran; below 0: the pause between them");
    }
}

void use_own_entries(Bench& bench, const char* key, Function empty8, Function affine8, Function pool8)
{
    const std::string name = key;
    const Driver& driver = bench.driver;
    if (!holds(name + ".entries", empty8 != nullptr && affine8 != nullptr,
               "entries without GCC's run time were linked")) {
        return;
    }
    int registers = 0, shared = 0;
    driver.function_attribute(&registers, attribute_registers, affine8);
    driver.function_attribute(&shared, attribute_static_shared, affine8);
    number(name + ".entries.registers", registers, "", text("affine; %d B shared", shared));
    const int all = bench.multiprocessors;
    const Address call = reinterpret_cast<Address>(write_call(bench, 0, 0xff, 0, 0));
    const Status status = launch(driver, affine8, past(bench), all, 8, call);
    const auto y = read_back<float>(bench, 0, y_at, n);
    int wrong = 0;
    for (int i = 0; i < n; ++i) {
        wrong += y[static_cast<std::size_t>(i)] == 0.5F * x_of(i) + static_cast<float>(i) ? 0 : 1;
    }
    if (!holds(name + ".entries.results", status == 0 && wrong == 0,
               text("status %d, %d of %d numbers wrong", status, wrong, n))) {
        return;
    }
    for (const int teams : {1, all}) {
        Way way = past(bench);
        const auto run = [&](Function function) {
            return [&, function] { return launch(driver, function, way, teams, 8, call) == 0; };
        };
        number(name + ".entries.empty." + shape(teams, 8) + ".sync", median_time(run(empty8)), "us");
        number(name + ".entries.affine." + shape(teams, 8) + ".sync", median_time(run(affine8)), "us");
        way.wait = false;
        number(name + ".entries.affine." + shape(teams, 8) + ".queue", median_time(run(affine8), 100), "us");
        driver.stream_synchronize(way.lane->stream);
    }
    if (pool8 != nullptr) {
        raise_pool(bench, name + ".entries.pool", pool8, [&](Call* there, unsigned bytes) {
            Way way = past(bench);
            way.dynamic_bytes = bytes;
            return launch(driver, pool8, way, all, 8, reinterpret_cast<Address>(there));
        });
    }
}

} // namespace experiment
