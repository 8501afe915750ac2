// flashomp info: what this build is and which devices it finds.
#include "commands.hpp"
#include "device_policy.hpp"
#include "report.hpp"

#include "flashomp/device.hpp"
#include "flashomp/version.hpp"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <omp.h>

namespace flashomp::cli {

namespace {

std::string or_unknown(const std::string& text)
{
    return text.empty() ? "unknown" : text;
}

struct BackendDevices {
    const char* backend;
    std::vector<DeviceInfo> devices;
};

/// The GPUs of every backend of the build that has some.
std::vector<BackendDevices> all_devices()
{
    std::vector<BackendDevices> all;
    for (const auto& [name, backend] : {std::pair{"cuda", Backend::cuda}, std::pair{"openmp", Backend::openmp}}) {
        if (std::vector<DeviceInfo> found = devices(backend); !found.empty()) {
            all.push_back({name, std::move(found)});
        }
    }
    return all;
}

/// Why a call that leaves the choice open would run where it would.
std::string default_place(const std::vector<BackendDevices>& found)
{
    if (!found.empty()) {
        const DeviceInfo& first = found.front().devices.front();
        return fmt::format("runs on {} (device {}) unless told otherwise: it is the first GPU, backend {}", first.name,
                           first.index, found.front().backend);
    }
    if (device_is_demanded()) {
        return fmt::format("runs nowhere unless told to: OMP_TARGET_OFFLOAD demands a GPU (MANDATORY), but {}",
                           why_no_device());
    }
    return fmt::format("runs on the host: {}", why_no_device());
}

void print_as_json(const std::vector<BackendDevices>& found)
{
    Json json;
    json["command"] = "info";
    json["build"] = build_json();
    json["host"] = {{"isa", host_isa()}, {"threads", omp_get_max_threads()}};
    json["devices"] = Json::array();
    for (const auto& [backend, list] : found) {
        for (const DeviceInfo& device : list) {
            json["devices"].push_back({{"backend", backend},
                                       {"index", device.index},
                                       {"name", device.name},
                                       {"capability", device.capability},
                                       {"multiprocessors", device.multiprocessors},
                                       {"driver", device.driver}});
        }
    }
    json["note"] = default_place(found);
    print_json(json);
}

void print_as_text(const std::vector<BackendDevices>& found)
{
    const BuildInfo& build = build_info();
    const int threads = omp_get_max_threads();
    Table table;
    table.add({"flashomp", build.version});
    table.add({"commit", build.commit});
    table.add({"compiler", build.compiler});
    table.add({"flags", build.flags});
    table.add({"offload", build.offload});
    table.add({"backends", fmt::format("{},reference", build.backends)});
    table.add({"host", fmt::format("{}, {} thread{}", host_isa(), threads, threads == 1 ? "" : "s")});
    if (found.empty()) {
        table.add({"devices", "none"});
    }
    for (const auto& [backend, list] : found) {
        for (const DeviceInfo& device : list) {
            table.add({fmt::format("{} device {}", backend, device.index),
                       fmt::format("{}, compute capability {}, {} multiprocessors, driver {}", device.name,
                                   or_unknown(device.capability), device.multiprocessors, or_unknown(device.driver))});
        }
    }
    fmt::print("{}{}\n", table.text(), default_place(found));
}

} // namespace

void add_info_command(CLI::App& app, Command& chosen)
{
    CLI::App* const command = app.add_subcommand("info", "This build, this machine and the devices found");
    command->footer("Examples:\n  flashomp info\n  flashomp info --json\n");
    const auto json = std::make_shared<bool>(false);
    command->add_flag("--json", *json, "print one JSON object to stdout");
    command->callback([json, &chosen] {
        chosen = [json] {
            const std::vector<BackendDevices> found = all_devices();
            if (*json) {
                print_as_json(found);
            } else {
                print_as_text(found);
            }
            return status_ok;
        };
    });
}

} // namespace flashomp::cli
