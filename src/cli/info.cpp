// flashomp info: what this build is and which devices it finds.
#include "commands.hpp"
#include "device_policy.hpp"
#include "host_isa.hpp"
#include "host_threads.hpp"
#include "report.hpp"
#include "store.hpp"

#include "flashomp/device.hpp"
#include "flashomp/version.hpp"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

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

/// The tuning table: where it is, and how many of its entries and of the shipped ones count here.
struct TuningFacts {
    std::string place; ///< a file, "off", "shipped", or empty: no variable says where
    std::string problem;
    struct Device {
        std::string name;
        std::size_t own, shipped;
    };
    std::vector<Device> devices;
};

TuningFacts tuning_facts(const std::vector<BackendDevices>& found)
{
    TuningFacts facts;
    const tuning::Place place = tuning::user_place();
    facts.place = place.is_off ? "off" : place.is_shipped_only ? "shipped" : place.file.string();
    facts.problem = tuning::user_problem();
    const auto add = [&](const std::string& name, const tuning::Key& key, Backend backend) {
        const tuning::Tables tables = tuning::tables_for(key.device, key.driver);
        const auto count = [&](const tuning::Table* table) {
            return table == nullptr ? 0
                                    : std::count_if(table->entries.begin(), table->entries.end(),
                                                    [&](const auto& entry) { return entry.first.backend == backend; });
        };
        facts.devices.push_back(
            {name, static_cast<std::size_t>(count(tables.user)), static_cast<std::size_t>(count(tables.shipped))});
    };
    add("host", {cpu_model(), host_isa(), {}}, Backend::openmp);
    for (const auto& [backend, list] : found) {
        const Backend which = std::string_view(backend) == "cuda" ? Backend::cuda : Backend::openmp;
        for (const DeviceInfo& device : list) {
            add(fmt::format("{} device {}", backend, device.index), {device.name, device.driver, {}}, which);
        }
    }
    return facts;
}

std::string tuning_text(const TuningFacts& facts)
{
    if (!facts.problem.empty() || facts.place == "off") {
        return facts.problem.empty() ? "off" : "ignored: " + facts.problem;
    }
    std::string text = facts.place.empty() ? "no table: HOME is not set" : facts.place;
    for (const TuningFacts::Device& device : facts.devices) {
        text += fmt::format("; {}: {} entr{} of this build{}", device.name, device.own, device.own == 1 ? "y" : "ies",
                            device.shipped > 0 ? fmt::format(", {} shipped", device.shipped) : "");
    }
    return text;
}

void print_as_json(const std::vector<BackendDevices>& found)
{
    Json json;
    json["command"] = "info";
    json["build"] = build_json();
    json["host"] = {{"isa", host_isa()}, {"threads", planned_threads(0)}};
    json["devices"] = Json::array();
    for (const auto& [backend, list] : found) {
        for (const DeviceInfo& device : list) {
            json["devices"].push_back({{"backend", backend},
                                       {"index", device.index},
                                       {"name", device.name},
                                       {"capability", device.capability},
                                       {"multiprocessors", device.multiprocessors},
                                       {"l2_bytes", device.l2_bytes},
                                       {"shared_bytes", device.shared_bytes},
                                       {"shares_cuda_memory", device.shares_cuda_memory},
                                       {"driver", device.driver}});
        }
    }
    const TuningFacts tuning = tuning_facts(found);
    json["tuning"] = {{"table", tuning.place}, {"problem", tuning.problem}, {"entries", Json::array()}};
    for (const TuningFacts::Device& device : tuning.devices) {
        json["tuning"]["entries"].push_back(
            {{"device", device.name}, {"own", device.own}, {"shipped", device.shipped}});
    }
    json["note"] = default_place(found);
    print_json(json);
}

void print_as_text(const std::vector<BackendDevices>& found)
{
    const BuildInfo& build = build_info();
    const int threads = planned_threads(0);
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
                       fmt::format("{}, compute capability {}, {} multiprocessors, driver of CUDA {}", device.name,
                                   or_unknown(device.capability), device.multiprocessors, or_unknown(device.driver))});
        }
    }
    table.add({"tuning", tuning_text(tuning_facts(found))});
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
