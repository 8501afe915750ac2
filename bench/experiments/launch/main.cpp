// Whether target regions that g++ 12 compiled can be launched past libgomp's launch (docs/log/launch-past-libgomp.md).
//     launch_IMAGE libgomp   kernels from libgomp's address map
//     launch_IMAGE own       kernels from a link of our own
//     launch_IMAGE ptx       writes the modules that `own` links to the current folder; needs no GPU
// Exit status: 0 all findings hold; 1 some do not; 2 there is no GPU, or the arguments are wrong.
#include "descriptors.hpp"
#include "driver.hpp"
#include "own_link.hpp"
#include "report.hpp"
#include "steps.hpp"

#include "regions.hpp"

#include <cstdio>
#include <omp.h>

using namespace experiment;

namespace {

constexpr bool has_pool = EXPERIMENT_POOL != 0;

int by_libgomp(const Driver& driver, const std::string& symbols, Context primary, Bench& bench)
{
    if (omp_get_num_devices() < 1) {
        std::fprintf(stderr, "experiment: the driver finds a GPU, but libgomp none; is its plugin beside it?\n");
        return 2;
    }
    const auto start = omp_get_wtime();
    go(nullptr, Way{});
    bare();
    number("load.libgomp", (omp_get_wtime() - start) * 1000, "ms", "the first region, with libgomp's link");
    Context current = nullptr, of_memory = nullptr;
    void* const memory = omp_target_alloc(1024, omp_get_default_device());
    driver.ctx_get(&current);
    const Status asked = driver.pointer_attribute(&of_memory, pointer_context, reinterpret_cast<Address>(memory));
    holds("context.shared", asked == 0 && current == primary && of_memory == primary,
          "libgomp works in the primary context, which was current before its first region");
    omp_target_free(memory, omp_get_default_device());
    bench.has_libgomp = true;
    if (!find_descriptors(driver, symbols.c_str(), bench.kernels) || !prepare(bench)) {
        return 1;
    }
    // What may end in a fault of the device comes last: nothing runs after one.
    if (has_pool) {
        check_results(bench, "libgomp", false);
        use_pool(bench, "libgomp");
    } else {
        time_floor(bench);
        check_results(bench, "libgomp", false);
        time_launches(bench, "libgomp");
        overlap_streams(bench, "libgomp");
        check_results(bench, "libgomp", true);
    }
    return failures() == 0 ? 0 : 1;
}

int by_own_link(const Driver& driver, Bench& bench)
{
    if (!prepare(bench)) {
        return 1;
    }
    OwnProgram plain, accelerated, bounded;
    if (link_program(driver, "own.90a", {.target = target_90a, .entries = true}, accelerated) ||
        link_program(driver, "own.90a_no_entries", {.target = target_90a}, accelerated)) {
        bench.kernels = accelerated.kernels;
        check_results(bench, "own.90a", false);
        time_launches(bench, "own.90a");
        overlap_streams(bench, "own.90a");
        use_own_entries(bench, "own.90a", own_entry(driver, accelerated, "emptyILi8EE"),
                        own_entry(driver, accelerated, "affineILi8EE"), own_entry(driver, accelerated, "poolILi8EE"));
        use_pool(bench, "own.90a");
    }
    if (link_program(driver, "own.default", {}, plain)) {
        bench.kernels = plain.kernels;
        use_pool(bench, "own.default");
    }
    if (link_program(driver, "own.90a_128", {.target = target_90a, .max_registers = 128}, bounded)) {
        bench.kernels = bounded.kernels;
        use_pool(bench, "own.90a_128");
    }
    return failures() == 0 ? 0 : 1;
}

int write_modules()
{
    const Image& image = *registered().image;
    for (unsigned i = 0; i < image.object_count; ++i) {
        const std::string name = text(EXPERIMENT_IMAGE ".%u.ptx", i), ptx = with_entries(image.objects[i].code);
        std::FILE* const file = std::fopen(name.c_str(), "w");
        if (file == nullptr || std::fputs(ptx.c_str(), file) < 0 || std::fclose(file) != 0) {
            std::fprintf(stderr, "experiment: %s cannot be written.\n", name.c_str());
            return 1;
        }
    }
    return 0;
}

} // namespace

int main(int argc, char** argv)
{
    const std::string mode = argc == 2 ? argv[1] : "";
    if (mode == "ptx") {
        return write_modules();
    }
    if (mode != "libgomp" && mode != "own") {
        std::fprintf(stderr, "experiment: give one argument: libgomp, own or ptx.\n");
        return 2;
    }
    Driver driver{};
    const char* why = "";
    if (!open_driver(driver, why)) {
        std::fprintf(stderr, "experiment: no GPU to run on: %s.\n", why);
        return 2;
    }
    begin_report(EXPERIMENT_IMAGE);
    version_facts(driver);
    Context primary = nullptr;
    Status status = driver.primary_retain(&primary, 0);
    status = status != 0 ? status : driver.ctx_set(primary);
    if (!holds("context", status == 0, status == 0 ? "the primary context is current" : name_of(driver, status))) {
        return 1;
    }
    Bench bench{.driver = driver, .kernels = {}, .has_libgomp = false, .multiprocessors = 0, .lanes = {}};
    bench.kernels.driver = &driver;
    driver.device_attribute(&bench.multiprocessors, device_multiprocessors, 0);
    return mode == "own" ? by_own_link(driver, bench)
                         : by_libgomp(driver, std::string(argv[0]) + ".nm", primary, bench);
}
